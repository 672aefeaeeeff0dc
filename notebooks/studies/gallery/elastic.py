"""Figures of the notebooks of elastic pipelines."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import titles, viz
from alkit.records.comparisons import of_seeds
from studies.elastic import ablation as elastic_study
from studies.elastic import memory as elastic_memory


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
    left.set(xlabel="layer, from below", ylabel="share of all norms")
    titles.panel(left, "Gradient norms")
    left.legend(fontsize=7)
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
        differ = [each.points for each in found if each.low > 0 or each.high < 0]
        numbers = {"differ": titles.count(*differ), "all": titles.count(*(f.points for f in found))}
        words = "{n}: {differ} of {all} freezing rules differ from never freezing"
        if not differ:
            words = "{n}: no freezing rule differs from never freezing beyond its interval"
        titles.title(fig, words, n=viz.seeds(own.seed.nunique()), **numbers)
    right.set(xlabel="points against never freezing")
    titles.panel(right, "Cost of each rule")
    return fig


def elastic_speed(rows: pd.DataFrame) -> Figure:
    """Draw samples per second and frozen layers over the epochs of an elastic run."""
    own = rows[rows.metric.isin(["samples_per_s", "frozen", "stages"])].astype({"value": float})
    wide = own.pivot(index="epoch", columns="metric", values="value")
    fig, (top, low) = plt.subplots(2, figsize=(6, 3.6), sharex=True, height_ratios=[2, 1])
    top.plot(wide.index, wide.samples_per_s, marker="D", color=viz.colour("elastic"))
    top.set(ylabel="samples per second", ylim=0)
    low.step(wide.index, wide.frozen, where="mid", color="0.35", label="frozen layers")
    low.step(wide.index, wide.stages, where="mid", color="0.35", ls="--", label="stages")
    low.set(xlabel="epoch", ylim=0)
    low.legend(frameon=False, fontsize=8, loc="center right")
    half = wide[2 * wide.frozen >= wide.frozen.max()].iloc[0]
    gain = titles.ratio(half.samples_per_s, wide.samples_per_s.iloc[0])
    words = "One run: with {k:.0f} layers frozen, {gain:.1f} times the samples per second"
    titles.title(fig, words, k=titles.value(half.frozen), gain=gain)
    return fig


def switches(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as data parallel training each method is, with its accuracy."""
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
        names = [f"{viz.label(v)}: {each:.1f} %" for v, each in points]
        spread = [own[base] - own.low, own.high - own[base]] if beside else None
        ax.barh(names, own[base], xerr=spread, color=colours, error_kw={"capsize": 2})
        ax.axvline(1, color="0.35", lw=1)
        ax.grid(visible=False, axis="y")
        ax.set(xlabel=f"times as fast as {viz.label(other)}")
        titles.panel(ax, viz.proper_name(which))
        ax.invert_yaxis()
    ours = chosen.loc[tasks[0]][base]
    numbers = {"ours": titles.value(ours["elastic"])}
    words = "{data}: elastic is {ours:.1f} times as fast as {other}"
    if beside and "one_freeze_cache" in ours:
        words = "{data}: elastic {ours:.1f}, freezing alone {alone:.1f} times data parallel's speed"
        numbers["alone"] = titles.value(ours["one_freeze_cache"])
    titles.title(fig, words, data=viz.proper_name(tasks[0]), other=viz.label(other), **numbers)
    return fig


def memory(rows: pd.DataFrame) -> Figure:
    """Draw the bytes that a rank holds at its fullest, by part, against a budget of bytes."""
    held = elastic_memory.table(rows)
    limit = int(rows[rows.metric == "budget"].value.iloc[0])
    most = held.total.groupby("method", sort=False).max() * elastic_memory.MB
    fits, out = most[most <= limit], most[most > limit] / elastic_memory.MB
    figure = elastic_memory.picture(held, limit)
    numbers = {"limit": titles.value(limit / elastic_memory.MB)}
    numbers["fits"] = titles.count(*fits / elastic_memory.MB)
    words = "{fits} of {all} methods fit in {limit:.0f} MB per process"
    if set(fits.index) == {"1f1b", "elastic"}:
        words = "Of {all} methods only pipelines fit in {limit:.0f} MB; checkpoints take {out:.1f}"
        numbers["out"] = titles.value(out["ddp_checkpoint"])
    titles.title(figure, words, all=str(len(most)), **numbers)
    return figure
