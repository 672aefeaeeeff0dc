"""How DTP's weight gradients lie beside backprop's, on one batch, with the network as it is.

Angles in degrees, from cosines that are clamped to [-1, 1]: rounding makes them larger.
"""

import pandas as pd
import torch
from torch import Tensor

from alkit.dtp.block import Pass
from alkit.dtp.networks import Net
from alkit.dtp.targets import local_gradients, next_target, output_target


def angle(a: Tensor, b: Tensor) -> float:
    """Return the angle between two tensors of one shape, flattened; 90 if one of them is 0."""
    a, b = a.flatten().double(), b.flatten().double()
    norms = (a.norm() * b.norm()).clamp_min(torch.finfo(torch.float64).tiny)
    return float(torch.rad2deg(torch.acos(((a * b).sum() / norms).clamp(-1, 1))))


def targets(net: Net, run: list[Pass], last: Tensor, rule: str = "difference") -> list[Tensor]:
    """Return the deltas of all blocks, from the last one's down."""
    deltas = [last]
    for n in reversed(range(1, len(net))):
        deltas.insert(0, next_target(net.blocks[n], run[n], deltas[0], rule))
    return deltas


def gradients(
    net: Net, x: Tensor, y: Tensor, beta: float, rule: str = "difference"
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return for each block DTP's gradients / beta, by a rule of `targets`, and the loss's."""
    run = net.locally(x)
    deltas = targets(net, run, output_target(run[-1].s, y, beta, net.loss), rule)
    found = map(local_gradients, net, run, deltas)
    made = [[g / beta for g in own] for own in found]
    owned = [block.forward_parameters() for block in net]
    true = iter(torch.autograd.grad(net.loss(net(x), y), sum(owned, [])))
    return made, [[next(true) for _ in own] for own in owned]


def compare(
    net: Net, x: Tensor, y: Tensor, beta: float = 0.005, rule: str = "difference"
) -> pd.DataFrame:
    """Return a row a block: angle, distance and norm_ratio of all its weights, without biases.

    The ratio is DTP's norm over backprop's. Nothing of the network changes.
    """
    rows, pairs = [], zip(*gradients(net, x, y, beta, rule), strict=True)
    for n, (own, other) in enumerate(pairs):
        if not (weights := [at for at, each in enumerate(own) if each.dim() > 1]):
            continue
        a, b = (torch.cat([side[at].flatten() for at in weights]) for side in (own, other))
        row = {"block": net.label(n), "angle": angle(a, b)}
        row |= {"distance": float((b - a).norm() / b.norm())}
        rows.append(row | {"norm_ratio": float(a.norm() / b.norm())})
    return pd.DataFrame(rows)
