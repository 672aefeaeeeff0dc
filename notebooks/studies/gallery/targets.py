"""Figures of the notebooks of target propagation."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import titles, viz
from studies.common.published import published
from studies.dtp import tables as dtp_tables

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
    ax.legend(frameon=False, fontsize=7)
    floor = titles.of(lambda error: 100 * error, worst["ELU, published"].iloc[-1])
    words = "Matched ELU's gradient error vanishes with beta; the published keeps {floor:.1f} %"
    titles.title(ax, words, floor=floor)
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
    ax.set(xlabel="times as fast as the published form in one process")
    words = "Two processes: the closed form is {gain:.1f} times the published form's speed"
    titles.title(ax, words, gain=titles.value(gain["closed x2"]))
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
        ax.set_xlabel("")
        titles.panel(ax, f"{feedback} feedback")
    axes[0].set_ylabel("angle to backprop, degrees")
    axes[2].legend(["paper", "ours, as published", "ours, exact"], frameon=False)
    left = beside.loc[("trained", "conv_0")]
    words = (
        "Trained feedback of {block}: {published:.0f} degrees off as published, {exact:.0f} exact"
    )
    numbers = {form: titles.value(left[form]) for form in ("published", "exact")}
    titles.title(fig, words, block="conv_0", **numbers)
    return fig
