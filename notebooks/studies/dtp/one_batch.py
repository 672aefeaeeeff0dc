"""What one batch shows: feedback that learns, angles over beta, lengths, the alignment figure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.dtp.angles import angle, compare, distance, norm_ratio
from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.losses import INDEX_MODES
from alkit.dtp.networks import EXACT, Net, Switches, network
from alkit.dtp.noise import draw, noise_for
from alkit.dtp.settings import Settings
from studies.dtp.data import pictures
from studies.dtp.presets import PRESETS

__all__ = [
    "alignment",
    "angles_of_betas",
    "best_multiple",
    "doubles",
    "feedback_rates",
    "multiples",
    "trace",
    "weight_symmetry",
]


def weight_symmetry(net: Net) -> pd.DataFrame:
    """Compare W with B (linear maps: with B^T), a row a weight of each trained feedback."""
    rows: list[dict[str, Any]] = []
    for n in net.trained:
        for part in net.blocks[n].affine():
            w, b = part.transposed().detach(), part.feedback_weight.detach()
            numbers = {"angle": angle(w, b), "distance": distance(w, b)}
            rows.append({"block": net.label(n), **numbers, "norm_ratio": norm_ratio(b, w)})
    return pd.DataFrame(rows)


def feedback_rates(net: Net, x: Tensor, sigma: Sequence[float], kappa: float) -> list[float]:
    """Return rates at which a plain step brings B nearer to its minimum by the share kappa.

    lr_n = kappa / (2 sigma_n^2 P_n), P_n the positions of a block's output: the published rates
    of simple_vgg have kappa 2e-3 in all but one block.
    """
    with torch.no_grad():
        outputs = net.locally(x[:1]).s
    positions = [outputs[n][0, 0].numel() for n in net.trained]
    return [kappa / (2 * s * s * p) for s, p in zip(sigma, positions, strict=True)]


def trace(
    net: Net, x: Tensor, settings: Settings, iterations: int, every: int = 10
) -> pd.DataFrame:
    """Train every feedback on one batch; return angle, distance, norm_ratio and loss as it goes."""
    feedback = BlockFeedback(net, settings)
    run, rows = net.locally(x), [weight_symmetry(net).assign(iteration=0, loss=float("nan"))]
    for done in range(0, iterations, every):
        count = min(every, iterations - done)
        means = {
            net.label(n): float(feedback.learn(n, run, step=done, iterations=count).mean())
            for n in feedback.loops
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
    **switches: Any,
) -> pd.DataFrame:
    """Return angles and errors against backprop of a network with copied weights, by beta."""
    net = network(
        name, channels=x.shape[1], side=x.shape[2], seed=seed, switches=Switches(**switches)
    ).to(x.dtype)
    net.make_symmetric()
    found = [compare(net, x, y, beta).assign(beta=beta) for beta in betas]
    return pd.concat(found, ignore_index=True)


def best_multiple(net: Net, n: int, x: Tensor, sigma: float, index: str, draws: int = 4) -> float:
    """Return the multiple of the copied weight that L-DRL likes best as block n's feedback."""
    run, generator = net.locally(x), noise_for(0, 0, n)
    block, inputs, s, notes = net.blocks[n], run.inputs[n], run.s[n].detach(), run.notes[n]
    top = bottom = 0.0
    with torch.no_grad():
        base = block.feedback(s, notes)
        for _ in range(draws):
            dx, dy = draw(inputs, sigma, generator), draw(s, sigma, generator)
            noisy, own = block(inputs + dx)
            forward = block.feedback(noisy, own if index == "own" else notes) - base
            top += float((dx * forward).sum())
            bottom += float((block.feedback(s + dy, notes) - base).square().sum())
    return top / bottom


def multiples(x: Tensor, seed: int, sigmas: Sequence[float]) -> pd.DataFrame:
    """Return simple_vgg's `best_multiple` by places, share of the noise and block."""
    rows = []
    net = network("simple_vgg", seed=seed, switches=EXACT).to(x.dtype)
    net.make_symmetric()
    for index in INDEX_MODES:
        for share in (1.0, 0.1):
            for n, sigma in enumerate(sigmas, 1):
                found = best_multiple(net, n, x, share * sigma, index, draws=1)
                rows.append((index, share, net.label(n), seed, found))
    return pd.DataFrame(rows, columns=["places", "noise", "block", "seed", "multiple"])


def doubles(data: str, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return one batch (x in double precision, y): of a data set, or "random" pictures."""
    if data != "random":
        found = pictures(data, normalisation="cifar10" if data == "cifar10" else "")
        x, y = next(iter(found.train.batches(size, seed=seed)))
        return x.double(), y
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64)
    return x, torch.arange(size) % 10


def alignment(
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    seed: int,
    exact: bool = False,
    kappa: float = 1e-3,
    **changes: Any,
) -> pd.DataFrame:
    """Return LeNet's angles to backprop on one batch: random, trained and copied feedback.

    As in the authors' figure, the preset "alignment": pools without padding and no biases; but with
    fewer iterations at higher rates.

    Args:
        kappa: sets the rates, see `feedback_rates`.
        changes: of the preset's settings.
    """
    preset = replace(PRESETS["alignment"], channels=x.shape[1], side=x.shape[2])
    net = replace(preset, switches=EXACT if exact else Switches()).net(seed)
    for parameter in net.parameters():
        if parameter.dim() == 1:
            parameter.data.zero_()
    options = {"index": "frozen", "noise": "orthogonal"} if exact else {}
    settings = replace(preset.settings, seed=seed, **(options | changes))
    beta, sigma = settings.beta, settings.lists([net.label(n) for n in net.trained]).sigma
    found = [compare(net, x, y, beta).assign(feedback="random")]
    rates = tuple(feedback_rates(net, x, sigma, kappa))
    feedback = BlockFeedback(net, replace(settings, feedback_lr=rates))
    run = net.locally(x)
    for n in feedback.loops:
        feedback.learn(n, run, step=0, iterations=iterations)
    found.append(compare(net, x, y, beta).assign(feedback="trained"))
    net.make_symmetric()
    found.append(compare(net, x, y, beta).assign(feedback="copied"))
    return pd.concat(found, ignore_index=True).assign(seed=seed)
