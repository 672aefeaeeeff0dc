"""How far apart two weights or gradients are.

Whole tensors, unless a row is asked for. Angles in degrees, from cosines that are clamped to
[-1, 1]: rounding makes them larger.
"""

import torch
from torch import Tensor

__all__ = ["angle", "distance", "norm_ratio", "row_angle"]


def angle(a: Tensor, b: Tensor) -> float:
    """Return the angle between two tensors of one shape, flattened; 90 if one of them is 0."""
    return float(_degrees(a.flatten()[None], b.flatten()[None])[0])


def row_angle(a: Tensor, b: Tensor) -> float:
    """Return the mean angle over rows: outputs of a linear map, channels of a convolution."""
    return float(_degrees(a.flatten(1), b.flatten(1)).mean())


def distance(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |a|."""
    return float((a - b).norm() / a.norm())


def norm_ratio(a: Tensor, b: Tensor) -> float:
    """Return |a| / |b|."""
    return float(a.norm() / b.norm())


def _degrees(a: Tensor, b: Tensor) -> Tensor:
    """Return the angles between rows."""
    a, b = a.double(), b.double()
    norms = (a.norm(dim=1) * b.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.rad2deg(torch.acos(((a * b).sum(1) / norms).clamp(-1, 1)))
