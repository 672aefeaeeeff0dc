"""Figures of the label side over depth: accuracies, and what blocks show, one line each."""

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alkit.lab import viz
from studies.common.study import TUNING_SEED
from studies.ladder import depth as depth_study
from studies.ladder import tables as ladder_tables

VARIANTS = ("bp", "linear", "cosine", "fixed_codes", "detached", "coupled")
MARKERS = "osP^Dv"


def draw_three(recorded: pd.DataFrame) -> Figure | None:
    """Draw accuracy over depth, and over blocks what a probe reads and where gradients point.

    Of the data set with the deepest networks that were looked into, of equal ones the first by
    name; the title has the local gradients' direction, the median over all blocks but the last.
    """
    looked = depth_study.looked_into(recorded)
    if not looked:
        return None
    most = max(looked.values())
    data = [each for each, depth in looked.items() if depth == most][0]  # by name: CIFAR-10 first
    own = _accuracies(recorded)
    fig, grid = plt.subplots(2, 2, figsize=viz.GRID)
    *axes, names = grid.flat
    _over_depth(axes[0], own[own.data == data])
    reads = {"probe": "accuracy of a probe, %", "alignment": "cosine with backprop's gradient"}
    for ax, (metric, words) in zip(axes[1:], reads.items(), strict=True):
        table = depth_study.over_blocks(recorded, metric, data=data, depth=most)
        _over_blocks(ax, table, words)
    below = table[(table.variant != "bp") & (table.block < most)]
    handles = _handles(axes)
    names.legend(handles.values(), handles, loc="center", frameon=False)
    names.axis("off")
    cosine = f"median cosine with backprop's is {below['mean'].median():.2f}"
    viz.put_title(fig, f"{viz.proper_name(data)}, {most} blocks: local gradients' {cosine}")
    return fig


def draw_depths(recorded: pd.DataFrame) -> Figure | None:
    """Draw test accuracy over depth, one panel per data set: means over seeds, and ranges.

    The title says what learned codes lose to fixed ones over the most blocks.
    """
    own = _accuracies(recorded)
    if not len(own):
        return None  # the tuning seed has no test accuracy
    sets = list(own.groupby("data"))
    size = (viz.WIDE[0] + 3.0 * (len(sets) - 1), viz.WIDE[1])
    fig, axes = plt.subplots(1, len(sets), figsize=size, squeeze=False)
    gaps = ladder_tables.contrast_gaps(recorded)
    found, most = [], int(own.depth.max())
    for ax, (data, rows) in zip(axes[0], sets, strict=True):
        _over_depth(ax, rows)
        ax.set_title(viz.proper_name(str(data)))
        key = (str(data), depth_study.name_of(most), "detached - fixed_codes")
        means = rows[rows.depth == most].groupby("name").value.mean()
        if key in gaps and ladder_tables.STUDY.verdict(*gaps[key]) == "behind":
            found.append(f"{means['fixed_codes'] - means['detached']:.1f}")
    _legend(fig, axes[0])
    title = f"With {most} blocks it is undecided what learned label codes cost"
    if len(found) == len(sets):
        title = f"{most} blocks: learned label codes lose {' and '.join(found)} points to fixed"
    viz.put_title(fig, title)
    return fig


def draw_blocks(
    recorded: pd.DataFrame, metrics: Mapping[str, str], *, data: str, depth: int
) -> Figure | None:
    """Draw what blocks show, one panel per metric: means over seeds, and their range.

    The title follows the variant that ends lowest in the first panel.

    Args:
        metrics: of `depth_study.diagnosed`, with the words for the axis.
    """
    tables = {m: depth_study.over_blocks(recorded, m, data=data, depth=depth) for m in metrics}
    if not any(map(len, tables.values())):
        return None
    size = (4.2 * len(metrics), 3.4)
    fig, axes = plt.subplots(1, len(metrics), figsize=size, squeeze=False)
    for ax, (metric, table) in zip(axes[0], tables.items(), strict=True):
        _over_blocks(ax, table, metrics[metric])
        ax.set(xlabel=f"block of {depth}, {viz.proper_name(data)}")
    _legend(fig, axes[0])
    shown = next(filter(len, tables.values()))
    shown = shown[shown.variant != "untrained"]
    means = shown.groupby("variant")["mean"].agg(["first", "last"])
    variant = str(means["last"].idxmin())
    what = metrics[next(name for name, table in tables.items() if len(table))]
    ends = f"from {means['first'][variant]:.2f} to {means['last'][variant]:.2f}"
    viz.put_title(fig, f"{_say(variant)}: {what} {ends}")
    return fig


def _accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of test accuracies, with depth and variant by name."""
    own = recorded[(recorded.metric == "accuracy") & (recorded.seed != TUNING_SEED)]
    own = own.assign(depth=own.model.str.extract(r"(\d+)$", expand=False).astype(int))
    return own.assign(name=own.recipe.replace("", "bp")).astype({"value": float})


def _over_blocks(ax: Axes, table: pd.DataFrame, words: str) -> None:
    styles = _styles()
    for name, own in table.groupby("variant", sort=False):
        style = styles.get(str(name), {"color": "0.6", "ls": ":"})
        line = style | {"ms": 3}
        ax.plot(own.block, own["mean"], label=_say(str(name)), **line)
        ax.fill_between(own.block, own.least, own.most, color=style["color"], alpha=0.15, lw=0)
    ax.set(xlabel="block", ylabel=words)
    ax.xaxis.get_major_locator().set_params(integer=True)


def _over_depth(ax: Axes, rows: pd.DataFrame) -> None:
    for shift, (name, style) in enumerate(_styles().items()):
        found = rows[rows.name == name].groupby("depth").value.agg(["mean", "min", "max"])
        if not len(found):
            continue
        at = found.index * 1.02 ** (shift - 2.5)  # ranges of variants don't cover each other
        spread = [found["mean"] - found["min"], found["max"] - found["mean"]]
        ax.errorbar(at, found["mean"], spread, label=ladder_tables.say(name), capsize=2, **style)
    depths = sorted(rows.depth.unique())
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xticks([], minor=True)
    start = 10 * (ax.get_ylim()[0] // 10)
    ax.set(xlabel="blocks", ylabel=f"test accuracy, %; axis from {start:g}", ylim=(start, None))


def _handles(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return what is drawn for each variant, once, by its name."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    return handles


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """Name each variant once, beside the panels."""
    handles = _handles(axes)
    where = {"loc": "outside right center", "frameon": False, "fontsize": 7}
    figure.legend(handles.values(), handles, **where)


def _say(variant: str) -> str:
    return "backprop, another start" if variant == "bp again" else ladder_tables.say(variant)


def _styles() -> dict[str, dict[str, str]]:
    """Return each variant's line; AL's two share its colour."""
    made = {}
    for name, marker in zip(VARIANTS, MARKERS, strict=True):
        own = viz.colour(viz.who(name if name == "bp" else f"al {name}"))
        made[name] = {"color": own, "marker": marker, "ls": "--" if name == "coupled" else "-"}
    return made
