"""Figures of associated learning's notebooks; each takes the rows of records."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from alkit.figures import viz
from alkit.records import study
from alkit.records.comparisons import gap
from studies import bench, depth_figures, ladder_tables

__all__ = [
    "ablation",
    "above_bound",
    "depth",
    "embeddings",
    "exits",
    "first_speed",
    "gaps",
    "label_sides",
    "ladder",
    "layer",
    "race",
    "step_cost",
    "tfidf",
    "throughput",
    "weak_scaling",
]

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
    ax.text(2.55, 0.15, "associated loss:\nb(s) is to be t, and t is not told", va="center")
    _arrow(ax, (1.2, -0.8), (0.0, -0.2), style="<->", colour="0.1")
    ax.text(1.55, -0.88, "autoencoder loss: h(t) is to be y", va="center")
    _arrow(ax, (2.4, 1.0), (4.6, 1.0), line="--")
    _arrow(ax, (2.4, -0.2), (4.6, -0.2), line="--")
    ax.text(4.65, 1.0, "detached, to the\nnext layer", va="center")
    ax.text(4.65, -0.2, "detached, to the\nnext layer", va="center")
    ax.set(xlim=(-0.4, 6.0), ylim=(-1.1, 1.3), aspect="equal")
    ax.axis("off")
    ax.set_title("Two losses a layer, and no gradient leaves it")
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
    """Draw samples a second of all modes and rivals, with the lowest and highest round."""
    rates = bench.recorded_rates(rows[rows.metric == "samples_s"])
    gain = float(rows[rows.metric == "pipeline_over_al"].value.iloc[0])
    title = f"The AL pipeline on two workers is {gain:.2f} times AL on one"
    return _rates(rates, title)


def _rates(rates: pd.DataFrame, title: str) -> Figure:
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
    ax.set(xlabel="times as fast as AL on one worker, median and range of rounds", title=title)
    return fig


def race(rows: pd.DataFrame) -> Figure:
    """Draw who is how fast on the Transformer, with the lowest and highest round."""
    own = rows[(rows.metric == "samples_s") & (rows.model == "transformer")]
    rates = bench.recorded_rates(own)
    rates = rates[~rates.method.isin(["clock", "ideal"])]
    best = rates.loc[rates.speedup.idxmax()]
    return _rates(rates, f"Transformer: {viz.label(best.label)} first, {best.speedup:.2f} times AL")


def weak_scaling(rows: pd.DataFrame) -> Figure:
    """Draw step times over blocks with a GPU each: published with marks, predicted as lines."""
    fig, ax = plt.subplots()
    own = rows[rows.metric == "weak_ms"].set_index("line")
    for line, row in own.iterrows():
        method = str(line) if line in ("bp", "al_fm") else "al_pipeline"
        measured, at = line == method, range(1, len(row.value) + 1)
        style = {"ls": "-", "marker": viz.marker(method)} if measured else {"ls": "--"}
        if line == "one process":
            style["ls"] = ":"
        text = f"{viz.label(method)}, {'published' if measured else f'predicted, {line}'}"
        ax.plot(at, row.value, color=viz.colour(method), label=text, **style)
    gain = own.value["al_fm"][-1] / own.value["a process a device"][-1]
    ax.set(xlabel="blocks, each on a GPU of its own", ylabel="ms a step", ylim=0)
    ax.set_title(f"Six processes are predicted to be {gain:.1f} times as fast as AL-FM")
    ax.legend(frameon=False, fontsize=8)
    return fig


def above_bound(rows: pd.DataFrame) -> Figure:
    """Draw how far above the bound the best cut and free workers are, over random layer costs."""
    own = rows[rows.metric == "over_bound"].set_index("method")
    names = {"cut": "best cut", "free": "free workers"}
    fig, ax = plt.subplots(figsize=(viz.SINGLE[0] + 1, 1.8))
    for at, key in enumerate(names):
        row = own.loc[key]
        ax.barh(
            at, 100 * (row.value - 1), color=viz.colour("al_pipeline"), alpha=1 - 0.5 * (not at)
        )
        ax.plot(100 * (row.worst - 1), at, "k|", ms=14)
        ax.text(100 * (row.worst - 1) + 1, at, "worst", va="center", fontsize=8)
    ax.margins(x=0.1)
    ax.set_yticks(range(2), list(names.values()))
    ax.invert_yaxis()
    ax.set(xlabel=f"percent above the bound, median of {own.n.iloc[0]:.0f} random sets of layers")
    cut, free = (100 * (own.value[key] - 1) for key in names)
    ax.set_title(f"Above the bound: best cut {cut:.0f} %, free workers {free:.1f} %")
    return fig


def ladder(rows: pd.DataFrame) -> Figure | None:
    """Draw the contrasts named before the runs: verdicts, and intervals of the paired t."""
    gaps = ladder_tables.contrast_gaps(rows)
    return ladder_tables.draw_contrasts(gaps) if gaps else None


def depth(rows: pd.DataFrame) -> Figure | None:
    """Draw test accuracy over the number of blocks, by arm of the label ladder; bars are seeds."""
    return depth_figures.draw_depths(rows)


def first_speed(rows: pd.DataFrame) -> Figure:
    """Draw step times of AL's modes and backprop, medians."""
    own = rows[rows.metric == "step_ms"].astype({"value": float})
    own = own.assign(label=[viz.label(method) for method in own.method])
    times = own.set_index("method").value
    gain = times["al"] / times["al_pipeline"]
    title = f"On two cores the pipeline's step takes 1/{gain:.2f} of AL's"
    return viz.bars(own, "value", title, xlabel="milliseconds a step, median")


def gaps(rows: pd.DataFrame) -> Figure:
    """Draw validation accuracy over the epochs by recipe, a panel a data set; bands are seeds."""
    sets = list(rows.groupby("data"))
    size = (4.2 * len(sets), 3.2)
    fig, axes = plt.subplots(1, len(sets), figsize=size, squeeze=False)
    for ax, (name, own) in zip(axes[0], sets, strict=True):
        lead = gap(own, "bp", "al fixed_codes")
        viz.learning_curves(study.curves(own), f"{name}, BP - fixed codes: {lead}", ax=ax)
    return fig


def label_sides(rows: pd.DataFrame) -> Figure:
    """Draw the autoencoder's loss over the constant's, by variant, first seed and level."""
    own = rows[(rows.metric == "loss_curve") & (rows.level == 1)]
    own = own.sort_values("seed").groupby("variant", sort=False).head(1)
    constants = rows[(rows.metric == "constant") & (rows.level == 1)]
    constant = constants.groupby("variant").value.first().astype(float)
    fig, ax = plt.subplots(figsize=viz.WIDE)
    for row in own.itertuples():
        published = row.variant == "original"
        style = {"color": "black", "lw": 2, "zorder": 9} if published else {"lw": 1}
        values = np.asarray(row.value) / constant[row.variant]
        name = "as published" if published else row.variant.replace("_", " ")
        ax.plot(range(1, len(values) + 1), values, label=name, **style)
    ax.set(xlabel="epoch", ylabel="loss / loss of the constant", ylim=(0, 1.15), xscale="log")
    escape = rows[(rows.metric == "escape") & (rows.level == 1)]
    late = escape[escape.variant == "original"].value.astype(float).median()
    ax.set_title(f"As published the label side leaves the constant in epoch {late:.0f}")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def embeddings(rows: pd.DataFrame) -> Figure:
    """Draw test accuracies by the table of word vectors, a dot a seed."""
    own = rows[rows.metric == "accuracy"].astype({"value": float})
    tables = ["aligned", "shifted", "random"]
    fig, ax = plt.subplots()
    for shift, (method, part) in zip((-0.1, 0.1), own.groupby("method", sort=False), strict=False):
        at = [tables.index(table) + shift for table in part.table]
        style = {"color": viz.colour(method), "marker": viz.marker(method)}
        ax.plot(at, part.value, ls="", label=viz.label(method), **style)
    ax.set_xticks(range(len(tables)), tables)
    mean = own.groupby("table").value.mean()
    ax.set(ylabel="test accuracy, %", xlabel="table of word vectors")
    n = own.seed.nunique()
    cost = mean["shifted"] - mean["aligned"]
    ax.set_title(f"Word vectors in a shifted table: {cost:+.1f} points (n = {n})")
    ax.legend(frameon=False)
    return fig


def exits(rows: pd.DataFrame) -> Figure:
    """Draw accuracy against cost of leaving early, and of single exits."""
    value = rows.set_index("metric").value
    fig, ax = plt.subplots()
    cost, accuracy = (100 * np.asarray(value[f"curve_{each}"]) for each in ("cost", "accuracy"))
    ax.plot(cost, accuracy, color=viz.colour("al"), label="leave when sure")
    single = 100 * np.asarray(value["flops"]) / value["flops"][-1]
    ax.plot(single, value["exits"], "s", color="0.4", label="one exit for all")
    cost, change = value["chosen_cost"], value["chosen_change"]
    said = f"Leave when sure: {cost:.0f} % of the cost, {change:+.2f} points"
    ax.set(xlabel="cost, % of the full climb", ylabel="test accuracy, %", title=said)
    ax.legend(frameon=False)
    return fig


def ablation(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as AL its modes are over the length of texts."""
    rows = rows[rows.metric.isin(["over_al", "clock_over_al"])].astype({"value": float})
    fig, axes = plt.subplots(1, 2, figsize=viz.WIDE)
    titles = {"over_al": "Measured here", "clock_over_al": "Predicted: a device a layer"}
    for ax, (metric, title) in zip(axes, titles.items(), strict=True):
        for method, part in rows[rows.metric == metric].groupby("method", sort=False):
            style = {"color": viz.colour(method), "marker": viz.marker(method), "ms": 4}
            if metric == "over_al":
                ends = [part.value - part.lowest, part.highest - part.value]
                ax.errorbar(
                    part.tokens, part.value, ends, capsize=3, label=viz.label(method), **style
                )
            else:
                ax.plot(part.tokens, part.value, ls="--", **style)
        ax.set(xlabel="tokens of a text", title=title, ylim=0)
    axes[0].set_ylabel("times as fast as AL")
    axes[0].legend(frameon=False, fontsize=8)
    last = rows[(rows.metric == "over_al") & (rows.method == "al_pipeline")].value
    said = f"The pipeline is {last.min():.2f} to {last.max():.2f} times as fast as AL"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig


def step_cost(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as the published recipe a step is, by family."""
    own = rows[(rows.metric == "speedup_over_original") & (rows.recipe == "fixed_codes")]
    own = own.astype({"value": float}).groupby("model", sort=False).value.median()
    fig, ax = plt.subplots(figsize=(viz.SINGLE[0], 0.9 + 0.38 * len(own)))
    ax.barh(list(own.index), own, color=viz.colour("al"))
    ax.axvline(1, color="0.35", lw=1)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    said = f"A step with fixed codes: {own.min():.2f} to {own.max():.2f} times as fast as published"
    ax.set(xlabel="times as fast as the published recipe, median", title=said)
    return fig


def tfidf(rows: pd.DataFrame) -> Figure:
    """Draw accuracy of TF-IDF with a linear classifier over the number of training texts."""
    row = rows[rows.metric == "curve"].iloc[0]
    fig, ax = plt.subplots()
    ax.plot(row.sizes, row.value, "o-", color=viz.colour("tfidf"))
    said = f"{row.data}: {row.value[0]:.0f} % from {row.sizes[0]} texts, {row.value[-1]:.0f} % from"
    ax.set(xlabel="training texts", ylabel="test accuracy, %", xscale="log")
    ax.set_title(f"{said} {row.sizes[-1]:,}")
    return fig
