"""How near the feedback of a layer comes to W^T, by noise, rate and iterations, as a picture."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from alkit.dtp.networks import network
from alkit.dtp.pieces import EXACT, PUBLISHED
from alkit.dtp.settings import Settings
from studies.dtp.one_batch import feedback_rates, trace


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
