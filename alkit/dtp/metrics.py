"""How far apart two weights or gradients are, and how symmetric feedback is.

Whole tensors, unless a row is asked for. Angles in degrees, from cosines that are clamped to
[-1, 1]: rounding makes them larger.
"""

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.dtp.block import Block
from alkit.dtp.networks import Net

__all__ = [
    "angle",
    "distance",
    "jacobian_angle",
    "norm_ratio",
    "row_angle",
    "weight_symmetry",
]


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


def weight_symmetry(net: Net) -> pd.DataFrame:
    """Compare W with B (linear maps: with B^T), a row a weight of each trained feedback."""
    rows: list[dict[str, Any]] = []
    for n in net.trained:
        for part in net.blocks[n].affine():
            w, b = part.transposed().detach(), part.feedback_weight.detach()
            rows.append({
                "block": net.label(n), "angle": angle(w, b), "distance": distance(w, b),
                "norm_ratio": norm_ratio(b, w),
            })  # fmt: skip
    return pd.DataFrame(rows)


def jacobian_angle(block: Block, x: Tensor) -> float:
    """Return the angle between the feedback's Jacobian and the forward map's, transposed.

    For small blocks: both matrices are made.

    Args:
        x: one sample, (1, ...).
    """
    with torch.no_grad():
        y, notes = block(x)
    forward = torch.autograd.functional.jacobian(lambda v: block(v)[0], x)
    back = torch.autograd.functional.jacobian(lambda v: block.feedback(v, notes), y)
    j_f = forward.reshape(y.numel(), x.numel())
    return angle(j_f.T, back.reshape(x.numel(), y.numel()))


def _degrees(a: Tensor, b: Tensor) -> Tensor:
    """Return the angles between rows."""
    a, b = a.double(), b.double()
    norms = (a.norm(dim=1) * b.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.rad2deg(torch.acos(((a * b).sum(1) / norms).clamp(-1, 1)))
