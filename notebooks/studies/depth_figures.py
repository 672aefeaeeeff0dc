"""Figures of the ladder over depth: accuracies, and what blocks show, an arm a line."""

import textwrap
from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alkit.figures import viz
from studies import depth_study, ladder_tables
from studies.tuned import TUNING_SEED, decided

__all__ = ["draw_blocks", "draw_depths"]

ARMS = ("bp", "linear", "cosine", "fixed_codes", "detached", "coupled")
MARKERS = "osP^Dv"
TITLE = 78  # characters of a title's line


def draw_depths(recorded: pd.DataFrame) -> Figure | None:
    """Draw test accuracy over depth, a panel a data set, an arm a line: means over seeds, ranges.

    A panel's title says what the contrasts over the most blocks came to.
    """
    own = recorded[(recorded.metric == "accuracy") & (recorded.seed != TUNING_SEED)]
    if not len(own):
        return None  # the tuning seed has no test accuracy
    own = own.assign(depth=own.model.str.extract(r"(\d+)$", expand=False).astype(int))
    own = own.assign(name=own.recipe.replace("", "bp")).astype({"value": float})
    sets = list(own.groupby("data"))
    size = (viz.WIDE[0] + 3.0 * (len(sets) - 1), viz.WIDE[1])
    fig, axes = plt.subplots(1, len(sets), figsize=size, squeeze=False)
    gaps = ladder_tables.contrast_gaps(recorded)
    for ax, (data, rows) in zip(axes[0], sets, strict=True):
        _over_depth(ax, rows)
        most = int(rows.depth.max())
        setting = (str(data), depth_study.name_of(most))
        last = {key: pair for key, pair in gaps.items() if key[:2] == setting}
        said = decided(last, ladder_tables.MARGIN, ladder_tables.say)
        title = f"{data}, {most} blocks: {said}"
        ax.set_title(textwrap.fill(title, TITLE // len(sets)))
    _legend(fig, axes[0])
    return fig


def draw_blocks(
    recorded: pd.DataFrame, metrics: Mapping[str, str], *, data: str, depth: int
) -> Figure | None:
    """Draw what blocks show, a panel a metric, an arm a line: means over seeds, and their range.

    A panel's title follows the arm that ends lowest.

    Args:
        metrics: of `depth_study.diagnosed`, with the words for the axis.
    """
    tables = {m: depth_study.over_blocks(recorded, m, data=data, depth=depth) for m in metrics}
    if not any(map(len, tables.values())):
        return None
    size = (4.2 * len(metrics), 3.4)
    fig, axes = plt.subplots(1, len(metrics), figsize=size, squeeze=False)
    styles = _styles()
    for ax, (metric, table) in zip(axes[0], tables.items(), strict=True):
        for name, own in table.groupby("arm", sort=False):
            style = styles.get(str(name), {"color": "0.6", "ls": ":"})
            line = style | {"ms": 3}
            ax.plot(own.block, own["mean"], label=_say(str(name)), **line)
            ax.fill_between(own.block, own.least, own.most, color=style["color"], alpha=0.15, lw=0)
        ax.set(xlabel="block", ylabel=metrics[metric])
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_title(_lowest(table))
    _legend(fig, axes[0])
    fig.suptitle(f"{data}, {depth} blocks", x=0.01, ha="left", fontweight="bold")
    return fig


def _over_depth(ax: Axes, rows: pd.DataFrame) -> None:
    for shift, (name, style) in enumerate(_styles().items()):
        found = rows[rows.name == name].groupby("depth").value.agg(["mean", "min", "max"])
        if not len(found):
            continue
        at = found.index * 1.02 ** (shift - 2.5)  # ranges of arms don't cover each other
        spread = [found["mean"] - found["min"], found["max"] - found["mean"]]
        ax.errorbar(at, found["mean"], spread, label=ladder_tables.say(name), capsize=2, **style)
    depths = sorted(rows.depth.unique())
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="blocks", ylabel="test accuracy, %")


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """Name each arm once, beside the panels."""
    handles = {}
    for ax in axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    where = {"loc": "outside right center", "frameon": False, "fontsize": 7}
    figure.legend(handles.values(), handles, **where)


def _lowest(table: pd.DataFrame) -> str:
    """Say how the arm that ends lowest went, from the first block to the last."""
    means = table.groupby("arm")["mean"].agg(["first", "last"])
    arm = means["last"].idxmin()
    return f"{_say(arm)}: {means['first'][arm]:.2f} to {means['last'][arm]:.2f}"


def _say(arm: str) -> str:
    return "backprop, another start" if arm == "bp again" else ladder_tables.say(arm)


def _styles() -> dict[str, dict[str, str]]:
    """Return a colour and marker an arm; backprop has its own."""
    colours = [viz.colour("bp"), *viz.shades(len(ARMS) - 1)]
    pairs = zip(ARMS, colours, MARKERS, strict=True)
    return {name: {"color": colour, "marker": marker} for name, colour, marker in pairs}
