"""DTP's weight gradients beside backprop's, on one batch, with the network as it is."""

from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.metrics import angle, distance, norm_ratio, row_angle
from alkit.dtp.networks import Net
from alkit.dtp.targets import first, forward_gradients, targets

__all__ = ["compare", "gradients"]


def gradients(
    net: Net,
    x: Tensor,
    y_onehot: Tensor,
    beta: float,
    *,
    rule: str = "difference",
    feedback: BlockFeedback | None = None,
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return for each block DTP's gradients / beta, and those of the mean cross-entropy.

    Args:
        feedback: whose targets to take; default those of the blocks' feedback by `rule`.
    """
    run = net.locally(x)
    last = first(run.s[-1], y_onehot, beta)
    deltas = targets(net, run, last, rule) if feedback is None else feedback.targets(run, last)
    made = [[g / beta for g in own] for own in forward_gradients(net, run, deltas)]
    owned = [block.forward_parameters() for block in net]
    true = iter(torch.autograd.grad(cross_entropy(net(x), y_onehot), sum(owned, [])))
    return made, [[next(true) for _ in own] for own in owned]


def compare(
    net: Net,
    x: Tensor,
    y_onehot: Tensor,
    beta: float = 0.005,
    *,
    rule: str = "difference",
    feedback: BlockFeedback | None = None,
) -> pd.DataFrame:
    """Return a row a block: angle, row_angle, distance and norm_ratio of its weight gradients.

    All weights of a block together, without biases; row_angle is the mean over its weights. The
    ratio is DTP's norm over backprop's.
    Nothing of the network changes.
    """
    rows: list[dict[str, Any]] = []
    made, true = gradients(net, x, y_onehot, beta, rule=rule, feedback=feedback)
    for n, (own, other) in enumerate(zip(made, true, strict=True)):
        pairs = [(a, b) for a, b in zip(own, other, strict=True) if a.dim() > 1]
        if not pairs:
            continue
        a, b = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
        rows.append({
            "block": net.label(n), "angle": angle(a, b),
            "row_angle": sum(row_angle(*pair) for pair in pairs) / len(pairs),
            "distance": distance(b, a), "norm_ratio": norm_ratio(a, b),
        })  # fmt: skip
    return pd.DataFrame(rows)
