"""Figures of the notebooks of elastic pipelines."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import viz
from alkit.records.comparisons import of_seeds
from studies import (
    elastic_memory,
    elastic_study,
)

__all__ = ["cache", "elastic_speed", "freezing", "memory", "pretraining", "switches"]


def freezing(rows: pd.DataFrame) -> Figure:
    """Draw the gradient norms by layer and epoch, and what each rule loses against none."""
    norms = np.array(rows[rows.metric == "norms"].value.iloc[0])
    own = rows[rows.metric == "accuracy"].astype({"value": float})
    wide = own.pivot(index="seed", columns="method", values="value")[own.method.unique()]
    fig, (left, right) = plt.subplots(1, 2, figsize=viz.WIDE)
    shade = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(norms)))
    for epoch, row in enumerate(norms):
        name_it = f"after epoch {epoch + 1}" if epoch in (0, len(norms) - 1) else None
        left.plot(range(1, len(row) + 1), row / row.sum(), color=shade[epoch], label=name_it)
    left.set(xlabel="layer, from below", ylabel="share of all norms", title="Gradient norms")
    left.legend(frameon=False, fontsize=7)
    rules = [rule for rule in wide if rule != "none"]
    if "none" in wide:
        found = [of_seeds((wide[rule] - wide["none"]).dropna()) for rule in rules]
        for at, each in enumerate(found):
            ends = [[each.points - each.low], [each.high - each.points]]
            bars = None if np.isnan(each.low) else ends
            style = {"color": viz.colour("elastic"), "capsize": 3}
            right.errorbar(each.points, at, xerr=bars, marker="o", **style)
        right.set_yticks(range(len(rules)), rules)
        right.axvline(0, color="0.35", lw=1)
        right.invert_yaxis()
        apart = [
            f"{rule} {each.points:+.1f}"
            for each, rule in zip(found, rules, strict=True)
            if each.low > 0 or each.high < 0
        ]
        title = "No rule differs from never freezing by more than its interval"
        if apart:
            title = f"Points from never freezing: {', '.join(apart)}"
        fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    right.set(xlabel="points against never freezing", title="What a rule costs")
    return fig


def elastic_speed(rows: pd.DataFrame) -> Figure:
    """Draw samples a second and frozen layers over the epochs of an elastic run."""
    own = rows[rows.metric.isin(["samples_per_s", "frozen", "stages"])].astype({"value": float})
    wide = own.pivot(index="epoch", columns="metric", values="value")
    fig, (top, low) = plt.subplots(2, figsize=(6, 3.6), sharex=True, height_ratios=[2, 1])
    top.plot(wide.index, wide.samples_per_s, marker="D", color=viz.colour("elastic"))
    top.set(ylabel="samples a second", ylim=0)
    low.step(wide.index, wide.frozen, where="mid", color="0.35", label="frozen layers")
    low.step(wide.index, wide.stages, where="mid", color="0.35", ls="--", label="stages")
    low.set(xlabel="epoch", ylim=0)
    low.legend(frameon=False, fontsize=8)
    gain = wide.samples_per_s.iloc[-1] / wide.samples_per_s.iloc[0]
    said = f"{gain:.1f} times the samples a second with {wide.frozen.iloc[-1]:.0f} layers frozen"
    top.set_title(said)
    return fig


def cache(rows: pd.DataFrame) -> Figure:
    """Draw seconds of an epoch with stored and with computed features, as layers freeze."""
    own = rows[rows.metric == "epoch_s"].astype({"value": float})
    wide = own.pivot(index="epoch", columns="kind", values="value")
    best = (wide.computed / wide.stored).iloc[1:].max()  # nothing is frozen in epoch 0
    fig, ax = plt.subplots(figsize=viz.SINGLE)
    ax.plot(wide.index, wide.computed, "o-", color=viz.colour("freeze"), label="computed")
    ax.plot(wide.index, wide.stored, "D-", color=viz.colour("elastic"), label="stored")
    ax.set(xlabel="epoch", ylabel="seconds", ylim=0, xticks=wide.index)
    ax.set_title(f"Stored features make an epoch up to {best:.2f} times as fast")
    ax.legend(frameon=False)
    return fig


def switches(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as data parallel training each row is, medians; accuracies."""
    chosen = elastic_study.ablation(rows)
    tasks = chosen.index.get_level_values("data").unique()
    beside = chosen["against ddp"].notna().any()
    base, other = ("against ddp", "ddp") if beside else ("times as fast", "1f1b")
    size = 4.8 * len(tasks), 1.2 + 0.28 * chosen.index.get_level_values("method").nunique()
    fig, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False)
    for ax, which in zip(axes[0], tasks, strict=True):
        own = chosen.loc[which].sort_values(base, ascending=False)
        colours = [viz.colour(variant) for variant in own.index]
        points = zip(own.index, own.accuracy, strict=True)
        ax.barh([f"{viz.label(v)}: {each:.1f} %" for v, each in points], own[base], color=colours)
        ax.axvline(1, color="0.35", lw=1)
        ax.grid(visible=False, axis="y")
        ax.set(xlabel=f"times as fast as {viz.label(other)}", title=which)
        ax.invert_yaxis()
    ours = chosen.loc[tasks[0]][base]
    alone = ours.reindex(["ddp_freeze_cache", "one_freeze_cache"]).max()
    same = "" if np.isnan(alone) else f", the same freezing without a pipeline {alone:.1f} times"
    said = f"{tasks[0]}: all four switches {ours['elastic']:.1f} times as fast as"
    fig.suptitle(f"{said} {viz.label(other)}{same}", x=0.01, ha="left", fontweight="bold")
    return fig


def memory(rows: pd.DataFrame) -> Figure:
    """Draw the bytes that a rank holds at its fullest, by part, against a budget of bytes."""
    held = elastic_memory.table(rows)
    limit = int(rows[rows.metric == "budget"].value.iloc[0])
    most = held.total.groupby("method", sort=False).max() * elastic_memory.MB
    few = ", ".join(elastic_memory.names(most[most <= limit].index))
    out = most[most > limit].min() / 1e6
    said = f"Within {limit / 1e6:.1f} MB a rank: {few}; without a pipeline it takes {out:.1f}"
    return elastic_memory.picture(held, limit, said)


WAYS = {"bert": "words and classes", "words": "words alone", "vit": "pictures"}


def pretraining(rows: pd.DataFrame) -> Figure:
    """Draw pretraining losses, with the points that a start from them is worth."""
    parts = {what: own for what, own in rows.groupby("preset", sort=False)}
    fig, axes = plt.subplots(1, len(parts), figsize=(3.6 * len(parts), 3), squeeze=False)
    best = []
    for ax, (what, own) in zip(axes[0], parts.items(), strict=True):
        curve = own[own.metric == "loss_curve"].iloc[0]
        ax.plot(np.linspace(0, 100, len(curve.value)), curve.value, color=viz.colour("elastic"))
        scores = own[own.metric == "finetuned"].set_index("start").value.astype(float)
        gained = scores["pretrained"] - scores.drop("pretrained").max()
        best.append(f"{WAYS.get(what, what)} {gained:+.1f}")
        ax.set(xlabel="percent of pretraining", ylabel="loss", title=WAYS.get(what, what))
    said = f"Points after a short fine-tuning, one seed: {', '.join(best)}"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig
