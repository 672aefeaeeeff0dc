"""What one batch shows: feedback that learns, and angles over beta."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net, network
from alkit.dtp.pieces import Switches
from alkit.dtp.settings import Settings
from studies.dtp.angles import angle, compare
from studies.dtp.data import pictures


def weight_symmetry(net: Net) -> pd.DataFrame:
    """Compare W with B (linear maps: with B^T), a row a weight of each trained feedback."""
    rows: list[dict[str, Any]] = []
    for n in net.trained:
        for part in net.blocks[n].affine:
            w, b = part.transposed().detach(), part.back.weight.detach()
            numbers = {"angle": angle(w, b), "distance": float((w - b).norm() / w.norm())}
            numbers |= {"norm_ratio": float(b.norm() / w.norm())}
            rows.append({"block": net.label(n), **numbers})
    return pd.DataFrame(rows)


def feedback_rates(net: Net, x: Tensor, sigma: Sequence[float], kappa: float) -> list[float]:
    """Return rates at which a plain step brings B nearer to its minimum by the share kappa.

    lr_n = kappa / (2 sigma_n^2 P_n), P_n the positions of a block's output: the published rates
    of simple_vgg have kappa 2e-3 in all but one block.
    """
    with torch.no_grad():
        outputs = [each.s for each in net.locally(x[:1])]
    positions = [outputs[n][0, 0].numel() for n in net.trained]
    return [kappa / (2 * s * s * p) for s, p in zip(sigma, positions, strict=True)]


def trace(
    net: Net, x: Tensor, settings: Settings, iterations: int, *, every: int = 10, seed: int = 0
) -> pd.DataFrame:
    """Train every feedback on one batch; return angle, distance, norm_ratio and loss as it goes."""
    feedback = BlockFeedback(net, settings, seed=seed)
    run, rows = net.locally(x), [weight_symmetry(net).assign(iteration=0, loss=float("nan"))]
    for done in range(0, iterations, every):
        count = min(every, iterations - done)
        feedback.iterations = dict.fromkeys(feedback.loops, count)
        means = {
            net.label(n): float(feedback.learn(n, run[n], done).mean()) for n in feedback.loops
        }
        now = weight_symmetry(net).assign(iteration=done + count)
        rows.append(now.assign(loss=now.block.map(means)))
    return pd.concat(rows, ignore_index=True)


def angles_of_betas(
    name: str,
    x: Tensor,
    y: Tensor,
    betas: Sequence[float],
    *,
    seed: int = 0,
    activation: Callable[[], nn.Module] = nn.ELU,
    **switches: Any,
) -> pd.DataFrame:
    """Return angles and errors against backprop of a network with copied weights, by beta."""
    made: dict[str, Any] = {"activation": activation, "switches": Switches(**switches)}
    net = network(name, channels=x.shape[1], side=x.shape[2], seed=seed, **made).to(x.dtype)
    net.make_symmetric()
    found = [compare(net, x, y, beta).assign(beta=beta) for beta in betas]
    return pd.concat(found, ignore_index=True)


def doubles(data: str, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return one batch (x in double precision, y): of a data set, or "random" pictures."""
    if data != "random":
        found = pictures(data, normalisation="cifar10" if data == "cifar10" else "")
        x, y = next(iter(found.train.batches(size, seed=seed)))
        return x.double(), y
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64)
    return x, torch.arange(size) % 10
