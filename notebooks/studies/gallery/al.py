"""Figures of associated learning's notebooks; each takes the rows of records."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from alkit.figures import titles, viz
from alkit.schedule import task as schedules
from alkit.schedule.clock import simulate
from studies.al import family_study as study
from studies.common import timing
from studies.ladder import depth_figures
from studies.ladder import tables as ladder_tables

BOXES: dict[str, tuple[float, float, str]] = {  # name -> x, y, what it says
    "x": (0.0, 1.0, "x"),
    "f": (1.2, 1.0, "f"),
    "s": (2.4, 1.0, "s"),
    "b": (2.4, 0.5, "b"),
    "y": (0.0, -0.2, "y"),
    "g": (1.2, -0.2, "g"),
    "t": (2.4, -0.2, "t"),
    "h": (1.2, -0.8, "h"),
}


def layer(rows: pd.DataFrame) -> Figure:
    """Draw one AL layer: its four functions, its two losses, and what crosses no border."""
    fig, ax = plt.subplots(figsize=(6.4, 3.0))
    for name, (x, y, said) in BOXES.items():
        own = viz.colour("al") if name in "fb" else viz.colour("al_pipeline")
        face = "white" if name in "xyst" else own
        box = FancyBboxPatch((x - 0.2, y - 0.13), 0.4, 0.26, boxstyle="round,pad=0.03", fc=face)
        ax.add_patch(box)
        box.set(ec="0.3" if name in "xyst" else own, alpha=1.0 if name in "xyst" else 0.75)
        ax.text(x, y, said, ha="center", va="center", fontsize=11)
    arrows = ["x f", "f s", "s b", "y g", "g t", "t h"]
    for pair in arrows:
        _arrow(ax, *(BOXES[each][:2] for each in pair.split()))
    _arrow(ax, (2.4, 0.5), (2.4, -0.2), style="<->", colour="0.1")
    ax.text(
        2.55,
        0.15,
        "associated loss: b(s) learns to match t;\nno gradient flows into t",
        va="center",
    )
    _arrow(ax, (1.2, -0.8), (0.0, -0.2), style="<->", colour="0.1")
    ax.text(1.55, -0.88, "autoencoder loss: h(t) learns to match y", va="center")
    _arrow(ax, (2.4, 1.0), (4.6, 1.0), line="--")
    _arrow(ax, (2.4, -0.2), (4.6, -0.2), line="--")
    ax.text(4.65, 1.0, "detached, to the\nnext layer", va="center")
    ax.text(4.65, -0.2, "detached, to the\nnext layer", va="center")
    ax.set(xlim=(-0.4, 6.0), ylim=(-1.1, 1.3), aspect="equal")
    ax.axis("off")
    titles.title(ax, "Each layer has two losses, and no gradient leaves it")
    return fig


def _arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    style: str = "-|>",
    colour: str = "0.35",
    line: str = "-",
) -> None:
    options = {"arrowstyle": style, "color": colour, "linestyle": line, "mutation_scale": 12}
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=15, shrinkB=15, **options))


def throughput(rows: pd.DataFrame) -> Figure:
    """Draw the speed of all modes and rivals, with the slowest and fastest round."""
    rates = timing.recorded_rates(rows[rows.metric == "samples_s"]).set_index("label", drop=False)
    fig, ax = _rates(rates)
    gain = titles.value(rates.speedup["al_pipeline"])
    titles.title(ax, "Two workers make the AL pipeline {gain:.2f} times as fast as AL", gain=gain)
    return fig


def _rates(rates: pd.DataFrame) -> tuple[Figure, Axes]:
    """Draw speed-ups over AL with the range of their rounds."""
    fig, ax = plt.subplots(figsize=(viz.SINGLE[0] + 1.5, 0.9 + 0.33 * len(rates)))
    at = range(len(rates))
    spread = [rates.speedup - rates.lowest, rates.highest - rates.speedup]
    ax.barh(at, rates.speedup, xerr=np.clip(spread, 0, None), error_kw={"capsize": 3})
    for bar, method in zip(ax.patches, rates.method, strict=True):
        bar.set_color(viz.colour(method))
    ax.set_yticks(at, [viz.label(each) for each in rates.label])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="times as fast as AL on one worker, median and range of rounds")
    return fig, ax


def race(rows: pd.DataFrame) -> Figure:
    """Draw the speed of every contender on the Transformer, with slowest and fastest round."""
    own = rows[(rows.metric == "samples_s") & (rows.model == "transformer")]
    rates = timing.recorded_rates(own).set_index("label", drop=False)
    rates = rates[~rates.method.isin(["simulated", "ideal"])]
    fig, ax = _rates(rates)
    over = rows[(rows.metric == "pipeline_over") & (rows.model == "transformer")]
    found = over.set_index("over").loc["al, 2 threads"]
    verdict = "ahead" if found.lowest > 1 else "behind" if found.highest < 1 else "undecided"
    titles.title(ax, "Transformer: free workers against AL's two threads: {said}", said=verdict)
    return fig


def block_sizes(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as the best backprop pipelines of layers are, by block size."""
    own = rows[rows.metric == "over_bp"].astype({"value": float}).sort_values("block_ms")
    fig, ax = plt.subplots()
    lines = [("local_pipeline, steps", "-"), ("local_pipeline", ":"), ("al_pipeline, steps", "--")]
    for contender, dashes in lines:
        found = own[own.contender == contender]
        method = contender.split(",")[0]
        style = {"color": viz.colour(method), "ls": dashes, "label": viz.label(contender)}
        for kind, part in found.groupby(found.model.str.split(" ").str[0], sort=False):
            one = kind == "transformer"
            ends = [part.value - part.lowest, part.highest - part.value]
            mark = {"transformer": "o", "conv": "s", "lstm": "^"}[str(kind)]
            line = style if one else style | {"ls": "", "label": None}
            ax.errorbar(part.block_ms, part.value, yerr=ends, marker=mark, capsize=2, **line)
    ax.axhline(1.0, color="0.5", lw=1)
    ticks = [each for each in (1, 2, 5, 10, 20, 50, 100) if each < own.block_ms.max()]
    ax.set(xscale="log", ylim=0, ylabel="times as fast as the best backprop")
    ax.set_xticks(ticks, [f"{each:g}" for each in ticks])
    ax.minorticks_off()
    ax.set_xlabel("ms of a block, backprop on one core")
    marks = "circles: Transformer\nsquares: convolutions\ntriangle: LSTM"
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
    ax.legend(title=marks, title_fontsize=7, fontsize=7, **beside)
    best = own[own.contender == "local_pipeline, steps"]
    words = "Compiled local layers: {low:.2f} to {high:.2f} times backprop's speed"
    said = best if len(best) else own
    words += "" if (said.lowest > 1).any() else "; none decidedly faster"
    titles.title(ax, words, low=titles.value(said.value.min()), high=titles.value(said.value.max()))
    return fig


def ladder(rows: pd.DataFrame) -> Figure | None:
    """Draw the contrasts named before the runs: verdicts, and intervals of the paired t."""
    gaps = ladder_tables.contrast_gaps(rows)
    return ladder_tables.draw_contrasts(gaps) if gaps else None


def depth(rows: pd.DataFrame) -> Figure | None:
    """Draw accuracy over depth, and over blocks what a probe reads and where gradients point."""
    return depth_figures.draw_three(rows)


def by_hand(rows: pd.DataFrame) -> Figure:
    """Draw four batches through four layers in turn, by AL-FM and by the pipeline, simulated."""
    cost = {"forward": 1.0, "backward": 2.0, "update": 0.3}
    plans = {"al": schedules.al(4), "al_fm": schedules.al_fm(4)}
    plans["al_pipeline"] = schedules.al_pipeline(4, None, 2)
    charts = {
        viz.label(mode): simulate(plan, lambda task: cost[task.kind], 4)
        for mode, plan in plans.items()
    }
    spans = [charts[viz.label(mode)].span_s for mode in ("al_pipeline", "al")]
    words = "Simulated: the pipeline takes {share:.2f} of the time of layers in turn"
    return viz.gantts(charts, words, share=titles.ratio(*spans))


def gaps(rows: pd.DataFrame) -> Figure:
    """Draw validation accuracy over the epochs by method and data set; bands are seeds."""
    sets = list(rows.groupby("data"))
    size = (viz.WIDE[0] if len(sets) > 1 else viz.SINGLE[0], 3.6)
    fig, axes = plt.subplots(1, len(sets), figsize=size, squeeze=False)
    ends: dict[str, list[float]] = {}
    for ax, (name, own) in zip(axes[0], sets, strict=True):
        curves = study.curves(own)
        viz.learning_curves(
            curves, f"{viz.proper_name(name)}, {viz.seeds(own.seed.nunique())}", ax=ax
        )
        ax.set_ylabel("validation accuracy, %" if ax is axes[0, 0] else "")
        for label, each in curves.groupby("label"):
            last = each.groupby("epoch").val_acc.mean().iloc[-1]
            ends.setdefault(str(label), []).append(last)
    for ax in axes[0]:
        ax.get_legend().remove()
    handles, names = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    off = zip(ends["bp"], ends["al fixed_codes"], strict=True)
    far = max(off, key=lambda pair: abs(pair[0] - pair[1]))
    numbers = {"gap": titles.difference(far[1], far[0])}
    numbers["bound"] = titles.of(lambda a, b: math.ceil(10 * abs(a - b)) / 10, *far)
    words = "Local classifiers end within {bound:.1f} points of backprop on validation"
    if "al original" in ends:
        words = (
            "Published AL ends at {old:.1f} %, local classifiers {gap:+.1f} points against backprop"
        )
        numbers["old"] = titles.value(ends["al original"][0])
    titles.title(fig, words, **numbers)
    return fig


def label_sides(rows: pd.DataFrame) -> Figure:
    """Draw the autoencoder's loss over the constant's, by variant, beside the published one."""
    own = rows[(rows.metric == "loss_curve") & (rows.level == 1)]
    own = own.sort_values("seed").groupby("variant", sort=False).head(1).set_index("variant")
    constants = rows[(rows.metric == "constant") & (rows.level == 1)]
    constant = constants.groupby("variant").value.first().astype(float)
    curves = {name: np.asarray(row.value) / constant[name] for name, row in own.iterrows()}
    old = curves.pop("original")
    fig, axes = plt.subplots(2, -(-len(curves) // 2), figsize=(9, 3.8), sharex=True, sharey=True)
    for ax, (name, values) in zip(axes.flat, curves.items(), strict=False):
        ax.plot(range(1, len(old) + 1), old, color="0.7", lw=3, label="as published")
        style = {"color": viz.colour("al"), "marker": "o", "ms": 4}
        ax.plot(range(1, len(values) + 1), values, label="changed", **style)
        titles.panel(ax, str(name).replace("_", " "))
        ax.set(ylim=(-0.06, 1.15), xticks=[1, 8, 16, 24])
    for spare in axes.flat[len(curves) :]:
        spare.axis("off")
    axes.flat[0].legend(frameon=False, fontsize=8)
    fig.supxlabel("epoch", fontsize=9)
    fig.supylabel("loss / loss of the constant", fontsize=9)
    escape = rows[(rows.metric == "escape") & (rows.level == 1)]
    late = escape[escape.variant == "original"].value.astype(float).median()
    words = "As published, the label autoencoder outputs a constant until epoch {late:.0f}"
    titles.title(fig, words, late=titles.value(late))
    return fig


def embeddings(rows: pd.DataFrame) -> Figure:
    """Draw test accuracies by the table of word vectors, one dot per seed."""
    own = rows[rows.metric == "accuracy"].astype({"value": float})
    tables = ["aligned", "shifted", "random"]
    fig, ax = plt.subplots()
    points: list[list[float]] = []
    for shift, (method, part) in zip((-0.1, 0.1), own.groupby("method", sort=False), strict=False):
        at = [tables.index(table) + shift for table in part.table]
        who = "local" if method == "al" else str(method)  # its label codes are fixed
        style = {"color": viz.colour(who), "marker": viz.marker(who)}
        ax.plot(at, part.value, ls="", label=viz.label(who), **style)
        for table in tables[:2]:
            points.append(part[part.table == table].value.tolist())
    ax.set_xticks(range(len(tables)), tables)
    ax.set(ylabel="test accuracy, %", xlabel=f"word vectors, {viz.seeds(own.seed.nunique())}")
    ax.legend(frameon=False)
    costs = {
        who: titles.of(_lost, *right, *shifted)
        for who, right, shifted in zip(("bp", "local"), points[::2], points[1::2], strict=True)
    }
    words = "{data}: a shifted table costs BP {bp:.1f}, local classifiers {local:.1f} points"
    titles.title(ax, words, data=viz.proper_name(own.data.iloc[0]), **costs)
    return fig


def _lost(*values: float) -> float:
    """Return the mean of the first half minus that of the second."""
    first, second = np.split(np.array(values), 2)
    return float(first.mean() - second.mean())


def exits(rows: pd.DataFrame) -> Figure:
    """Draw accuracy against cost of leaving early, and of single exits."""
    value = rows.set_index("metric").value
    fig, ax = plt.subplots()
    cost, accuracy = (100 * np.asarray(value[f"curve_{each}"]) for each in ("cost", "accuracy"))
    colour = viz.colour(rows.method.iloc[0])
    ax.plot(cost, accuracy, color=colour, label="leave when sure")
    single = 100 * np.asarray(value["exit_costs"])
    ax.plot(single, value["exits"], "s", color="0.4", label="all leave here")
    chosen = value["chosen_cost"], value["exits"][-1] + value["chosen_change"]
    ax.plot(*chosen, "D", color=colour, label="chosen on validation")
    ax.axvline(100, color="0.35", lw=1)
    ax.set(xlabel="cost, % of the network with its last exit alone", ylabel="test accuracy, %")
    ax.legend(frameon=False)
    words = "{data}: leaving when sure saves {saved:.0f} % of cost, {points:+.2f} points"
    numbers = {"saved": titles.difference(100, chosen[0])}
    numbers["points"] = titles.difference(chosen[1], value["exits"][-1])
    titles.title(ax, words, data=viz.proper_name(rows.data.iloc[0]), **numbers)
    return fig


def tfidf(rows: pd.DataFrame) -> Figure:
    """Draw accuracy of TF-IDF with a linear classifier over the number of training texts."""
    row = rows[rows.metric == "curve"].iloc[0]
    fig, ax = plt.subplots()
    ax.plot(row.sizes, row.value, "o-", color=viz.colour("tfidf"))
    ax.set(xlabel="training texts", ylabel="test accuracy, %", xscale="log")
    ax.set_xticks(row.sizes, [f"{size:,}" for size in row.sizes])
    ax.set_xticks([], minor=True)
    words = "TF-IDF on {data}: {low:.0f} % from {few:.0f} texts, {high:.0f} % from {many:,.0f}"
    ends = {"low": row.value[0], "few": row.sizes[0], "high": row.value[-1], "many": row.sizes[-1]}
    numbers = {name: titles.value(end) for name, end in ends.items()}
    titles.title(ax, words, data=viz.proper_name(row.data), **numbers)
    return fig
