"""What one batch shows: feedback that learns, and angles over beta."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net, network
from alkit.dtp.pieces import EXACT, PUBLISHED, Switches
from alkit.dtp.settings import Settings
from studies.dtp.angles import angle, compare

EVERY = 10  # iterations between two looks


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
    net: Net, x: Tensor, settings: Settings, iterations: int, *, seed: int = 0
) -> pd.DataFrame:
    """Train every feedback on one batch; return angle, distance, norm_ratio and loss as it goes."""
    feedback = BlockFeedback(net, settings, seed=seed)
    run, rows = net.locally(x), [weight_symmetry(net).assign(iteration=0, loss=float("nan"))]
    for done in range(0, iterations, EVERY):
        count = min(EVERY, iterations - done)
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


def learn(
    x: Tensor,
    sigma: float = 0.2,
    kappa: float = 0.02,
    iterations: int = 100,
    index: str = "own",
    exact: bool = False,
) -> None:
    """Let the feedback of a new network learn on a batch, and draw how near it comes."""
    switches = EXACT if exact else PUBLISHED
    net = network("tiny", channels=x.shape[1], side=x.shape[2], seed=0, switches=switches)
    rates = feedback_rates(net, x, [sigma] * 3, kappa)
    settings = Settings(sigma=sigma, feedback_lr=tuple(rates), index=index)
    try:
        table = trace(net, x, settings, iterations, seed=0)
    except FloatingPointError as error:
        print(error)
        return
    ends = table[table.iteration == table.iteration.max()].itertuples()
    print("angle between B and W^T, and the ratio of their norms:", end=" ")
    print(", ".join(f"{row.block} {row.angle:.0f}° ({row.norm_ratio:.2f})" for row in ends))
    picture(table)
    plt.show()


def picture(table: pd.DataFrame) -> Figure:
    """Draw angle, distance and loss over iterations, one line per block."""
    fig, axes = plt.subplots(1, 3, figsize=(8.0, 2.7))
    blocks = list(dict.fromkeys(table.block))
    marks = {"angle": "angle to W^T, degrees", "distance": "distance from W^T", "loss": "loss"}
    for ax, (column, label) in zip(axes, marks.items(), strict=True):
        for block in blocks:
            own = table[table.block == block]
            scale = own[column].abs().max() if column == "loss" else 1.0
            ax.plot(own.iteration, own[column] / scale, label=block)
        ax.set(xlabel="iteration", ylabel=label if column != "loss" else "loss / its largest")
    axes[0].set_ylim(0, 95)
    axes[0].legend(frameon=False, fontsize=8)
    angles = table.groupby("iteration", sort=True).angle.median()
    ends = f"{angles.iloc[0]:.0f} degrees at start, {angles.iloc[-1]:.0f} at the end"
    fig.suptitle(f"Feedback turns: median angle {ends}", x=0.01, ha="left", wrap=True)
    return fig
