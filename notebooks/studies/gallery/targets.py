"""Figures of the notebooks of target propagation."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import titles, viz
from studies.dtp import tables as dtp_tables


def inverse(rows: pd.DataFrame) -> Figure:
    """Draw the length of learned feedback over the weights', as published and exact."""
    own = rows[rows.metric.isin(["angle", "norm_ratio"])].astype({"value": float})
    fig, axes = plt.subplots(1, 2, figsize=viz.WIDE)
    wide = {
        metric: own[own.metric == metric].pivot(index="block", columns="method", values="value")
        for metric in ("angle", "norm_ratio")
    }
    said = {"angle": "angle to W^T, degrees", "norm_ratio": "|B| / |W|"}
    for ax, (metric, table) in zip(axes, wide.items(), strict=True):
        colours = [viz.colour(method) for method in table]
        table.plot.bar(ax=ax, rot=0, color=colours, legend=False)
        ax.set(ylabel=said[metric], xlabel="")
    names = [viz.label(m) for m in wide["angle"]]
    fig.legend(axes[0].containers, names, loc="outside lower center", ncols=2, frameon=False)
    axes[1].axhline(1, color="0.35", lw=1)
    lengths = wide["norm_ratio"].iloc[0]
    words = "Feedback of {block} is {dtp:.1f} times the weights' length published, "
    words += "{dtp_exact:.1f} exact"
    numbers = {method: titles.value(length) for method, length in lengths.items()}
    titles.title(fig, words, block=str(lengths.name), **numbers)
    return fig


def dtp_accuracy(rows: pd.DataFrame) -> Figure | None:
    """Draw the contrasts named before the runs on CIFAR-10: verdicts, intervals of the paired t."""
    gaps = dtp_tables.contrast_gaps(rows)
    return dtp_tables.draw_contrasts(gaps) if gaps else None
