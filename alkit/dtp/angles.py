"""How DTP's weight gradients lie beside backprop's, on one batch, with the network as it is.

Angles in degrees, from cosines that are clamped to [-1, 1]: rounding makes them larger.
"""

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.networks import Net
from alkit.dtp.targets import forward_gradients, output_target, targets


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


def gradients(
    net: Net,
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    rule: str = "difference",
    feedback: BlockFeedback | None = None,
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return for each block DTP's gradients / beta, and those of the loss.

    Args:
        feedback: whose targets to take; default those of the blocks' feedback by `rule`.
    """
    run = net.locally(x)
    last = output_target(run.s[-1], y, beta, net.loss)
    deltas = targets(net, run, last, rule) if feedback is None else feedback.targets(run, last)
    made = [[g / beta for g in own] for own in forward_gradients(net, run, deltas)]
    owned = [block.forward_parameters() for block in net]
    true = iter(torch.autograd.grad(net.loss(net(x), y), sum(owned, [])))
    return made, [[next(true) for _ in own] for own in owned]


def compare(
    net: Net,
    x: Tensor,
    y: Tensor,
    beta: float = 0.005,
    *,
    rule: str = "difference",
    feedback: BlockFeedback | None = None,
) -> pd.DataFrame:
    """Return a row a block: angle, row_angle, distance and norm_ratio of its weight gradients.

    All weights of a block together, without biases; row_angle is the mean over its weights. The
    ratio is DTP's norm over backprop's.
    Nothing of the network changes. Arguments are those of `gradients`.
    """
    rows: list[dict[str, Any]] = []
    made, true = gradients(net, x, y, beta, rule=rule, feedback=feedback)
    for n, (own, other) in enumerate(zip(made, true, strict=True)):
        pairs = [(a, b) for a, b in zip(own, other, strict=True) if a.dim() > 1]
        if not pairs:
            continue
        a, b = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
        row = {
            "block": net.label(n),
            "angle": angle(a, b),
            "row_angle": sum(row_angle(*pair) for pair in pairs) / len(pairs),
            "distance": distance(b, a),
            "norm_ratio": norm_ratio(a, b),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _degrees(a: Tensor, b: Tensor) -> Tensor:
    """Return the angles between rows."""
    a, b = a.double(), b.double()
    norms = (a.norm(dim=1) * b.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.rad2deg(torch.acos(((a * b).sum(1) / norms).clamp(-1, 1)))
