"""Figures of the notebooks of target propagation."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import viz
from alkit.records.verdicts import published
from studies import (
    dtp_tables,
)

__all__ = ["dtp_accuracy", "dtp_angles", "dtp_speed", "inverse", "matching"]


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
        table.plot.bar(ax=ax, rot=0, color=colours, legend=metric == "angle")
        ax.set(ylabel=said[metric], xlabel="")
    axes[0].legend([viz.label(m) for m in wide["angle"]], frameon=False)
    axes[1].axhline(1, color="0.35", lw=1)
    longest = wide["norm_ratio"].max()
    ends = ", ".join(f"{viz.label(m)} up to {longest[m]:.1f}" for m in wide["norm_ratio"])
    fig.suptitle(f"Length of B over W's: {ends}", x=0.01, ha="left", fontweight="bold")
    return fig


def matching(rows: pd.DataFrame) -> Figure:
    """Draw the relative error of targets' gradients over beta, by activation, worst block."""
    own = rows[(rows.metric == "distance") & (rows.beta.notna())].astype({"value": float})
    own = own[own.model == "simple_vgg"]
    worst = own.groupby(["method", "beta"], sort=False).value.max().unstack("method")
    fig, ax = plt.subplots()
    for method, shade in zip(worst, viz.shades(worst.shape[1]), strict=True):
        values = worst[method].clip(lower=1e-16)
        ax.loglog(worst.index, values, "o-", ms=3, color=shade, label=method)
    ax.set(xlabel="beta", ylabel="relative error of the gradient, worst block")
    ax.set_title("Matched feedback errs as beta; the published ELU has a floor")
    ax.legend(frameon=False, fontsize=7)
    return fig


def dtp_accuracy(rows: pd.DataFrame) -> Figure | None:
    """Draw the contrasts named before the runs on CIFAR-10: verdicts, intervals of the paired t."""
    gaps = dtp_tables.contrast_gaps(rows)
    return dtp_tables.draw_contrasts(gaps) if gaps else None


def dtp_speed(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as the published form a step is, with least and most round."""
    own = rows[rows.metric.isin(["over published form", "least", "most"])]
    shown = own.pivot_table(
        index="method", columns="metric", values="value", sort=False, aggfunc="first"
    ).astype(float)
    gain = shown["over published form"]
    fig, ax = plt.subplots(figsize=(6, 0.8 + 0.28 * len(gain)))
    shades = {"closed": "dtp", "expected": "dtp_exact"}
    colours = [viz.colour(shades.get(kind.split()[0], "dtp_fixed")) for kind in gain.index]
    spread = [gain - shown.least, shown.most - gain]
    ax.barh(list(gain.index), gain, xerr=spread, color=colours, error_kw={"capsize": 3})
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    said = f"Closed form on two processes: {gain['closed x2']:.1f} times as fast"
    ax.set(xlabel="times as fast as the published form in one process", title=said)
    return fig


def dtp_angles(rows: pd.DataFrame) -> Figure:
    """Draw angles of targets to backprop on LeNet, published and ours, by kind of feedback."""
    own = rows[(rows.metric == "angle") & (rows.model == "lenet")].astype({"value": float})
    means = own.groupby(["method", "feedback", "block"], sort=False).value.mean().unstack("method")
    theirs = published("dtp_angles").set_index(["feedback", "block"])[["angle"]]
    beside = theirs.join(means)[["angle", "published", "exact"]]
    fig, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True)
    colours = ["0.6", viz.colour("dtp"), viz.colour("dtp_exact")]
    for ax, feedback in zip(axes, ["random", "trained", "copied"], strict=True):
        last = feedback == "copied"
        beside.loc[feedback].plot.bar(ax=ax, rot=0, legend=last, color=colours)
        ax.set(title=feedback, xlabel="")
    axes[0].set_ylabel("angle to backprop, degrees")
    axes[2].legend(["published", "ours, as published", "ours, exact"], frameon=False)
    left = [beside.loc[("trained", "conv_0"), form] for form in ("published", "exact")]
    said = f"Trained, first block: {left[0]:.0f} degrees as published, {left[1]:.0f} exact"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig
