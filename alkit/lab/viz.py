"""One look for all figures: theme, a colour and marker a method, Gantt charts, saving."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from alkit.base.paths import runs_dir
from alkit.lab import styles
from alkit.lab.results import FOLDER
from alkit.schedule.timeline import Timeline

SINGLE, WIDE = (5.0, 3.2), (8.0, 3.0)  # inches
SHOWN_DPI = 100  # points of the screen per inch, in dashboards as in cells
SAVED_DPI = 160

Shown = Literal["stage", "batch", "micro"]


def shell() -> Any:
    """Return IPython's shell, None outside of it."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def set_theme() -> None:
    """Set the house's theme: white grid, colour-blind palette, opaque background.

    A notebook shows its figures also where `MPLBACKEND` names Agg, as machines without a screen do.
    """
    if hasattr(here := shell(), "kernel") and mpl.get_backend().lower() == "agg":
        here.run_line_magic("matplotlib", "inline")
    rc: dict[str, Any] = {"figure.figsize": SINGLE, "figure.facecolor": "white"}
    rc |= {"axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    rc |= {"figure.constrained_layout.use": True, "svg.hashsalt": "alkit"}
    looks: dict[str, Any] = {"style": "whitegrid", "palette": "colorblind", "font_scale": 0.8}
    sns.set_theme(context="notebook", rc=rc, **looks)


def put_title(where: Axes | Figure, text: str) -> None:
    """Give a chart, or a figure of several, a title, in lines that are no wider than the figure."""
    if isinstance(where, Axes):
        where.set_title(text, wrap=True)
    else:
        where.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold", wrap=True)


def known(name: str) -> bool:
    """Say whether a name is a method's, with a colour, a marker and a label of its own."""
    return name.partition(",")[0] in styles.METHODS


def colour(method: str) -> str:
    """Return the colour of a method, however it was run: "fr, new noise" has FR's."""
    return _of(method.partition(",")[0])[0]


def marker(method: str) -> str:
    """Return the marker of a method."""
    return _of(method)[1]


def label(method: str) -> str:
    """Return the name of a method as plots show it; what follows a comma says how it was run."""
    name, comma, how = method.partition(",")
    return _of(name)[2] + comma + how


def proper_name(name: str) -> str:
    """Return the name of a data set or of a network as people write it."""
    return styles.NAMES.get(name, name)


def seeds(count: int) -> str:
    """Return how many seeds, as a title says it."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def who(name: str) -> str:
    """Return whose colour a record's label has: AL's for "al mse", DGL's for "al dgl"."""
    method, _, recipe = name.partition(" ")
    return recipe if recipe in styles.METHODS else method


def kind_colour(kind: str) -> str:
    """Return the colour of a kind of task: "forward", "backward", "update", ..."""
    return styles.KINDS.get(kind, "0.7")


def shades(count: int) -> list[str]:
    """Return colours for lines that are no methods: cuts, links, sizes."""
    return list(sns.color_palette("colorblind", count).as_hex())


def gantts(timelines: Mapping[str, Timeline], title: str, *, number: Shown = "stage") -> Figure:
    """Draw who was busy when, a chart a timeline, on one scale of time; keys are their titles.

    A row a resource, a box a task: its colour is the kind, light and dark alternate with the batch.
    Measured and simulated timelines look the same.

    Args:
        number: what the number in a box is; where a resource has one layer, batches or
            micro-batches say more.
    """
    heights = [0.625 + 0.25 * len(timeline.resources) for timeline in timelines.values()]
    span_s = max(timeline.span_s for timeline in timelines.values())
    shape: dict[str, Any] = {"figsize": (WIDE[0], sum(heights) + 0.5), "height_ratios": heights}
    fig, axes = plt.subplots(len(timelines), sharex=True, squeeze=False, **shape)
    for ax, (name, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
        _gantt(ax, timeline, number, span_s)
        ax.set_title(name)
    ax.set(xlabel=styles.CLOCKS.get(timeline.clock, "seconds"), xlim=(0, span_s or 1))
    every = [i for timeline in timelines.values() for i in timeline.intervals]
    seen = {i.kind for i in every if i.end_s > i.start_s}
    handles = [
        Patch(color=color, label=kind.replace("_", ", "))
        for kind, color in styles.KINDS.items()
        if kind in seen
    ]
    handles.append(Patch(alpha=0, label=f"number: {styles.NUMBERS[number]}"))
    if any(i.batch for i in every):
        handles.append(Patch(alpha=0, label="shade: every other batch"))
    columns = min(len(handles), 5)
    fig.legend(handles=handles, loc="outside lower right", ncols=columns, frameon=False)
    put_title(fig, title)
    return fig


def _gantt(ax: Axes, timeline: Timeline, number: Shown, span_s: float) -> None:
    places = {name: at for at, name in enumerate(timeline.resources)}
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5}
    for i in timeline.intervals:
        y, width, shade = places[i.resource], i.end_s - i.start_s, 0.6 if i.batch % 2 else 1.0
        ax.barh(y, width, left=i.start_s, color=kind_colour(i.kind), alpha=shade, **edge)
        if width > 0.018 * span_s:
            middle = i.start_s + width / 2
            told = str(getattr(i, number))
            ax.text(middle, y, told, ha="center", va="center", fontsize=7, color="0.1")
    ax.set_yticks(range(len(places)), list(places))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")


def learning_curves(
    curves: pd.DataFrame, title: str, *, chance: float | None = None, ax: Axes | None = None
) -> Axes:
    """Draw validation accuracy over the epochs: one line per label, a band from lowest to highest.

    Args:
        curves: rows of `studies.al.family_study.curves`: label ("bp", ...), epoch, val_acc.
        chance: accuracy of guessing, drawn as a thin line.
    """
    named = curves.assign(shown=curves["label"].map(display))
    methods = dict(zip(named["shown"], named["label"].map(who), strict=True))
    colours = {name: colour(method) for name, method in methods.items()}
    markers = {name: marker(method) for name, method in methods.items()}
    told: dict[str, Any] = {"hue": "shown", "style": "shown"}
    told |= {"palette": colours, "markers": markers}
    ax = sns.lineplot(named, x="epoch", y="val_acc", errorbar=("pi", 100), ax=ax, **told)
    if chance is not None:
        ax.axhline(chance, color="0.6", lw=0.8)
        ax.text(1, chance, "chance", fontsize=7, color="0.4", va="bottom")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="epoch", ylabel="validation accuracy, %", title=title)
    ax.legend(frameon=False)
    return ax


def display(name: str) -> str:
    """Return a label such as "al original" as plots show it: "AL, as published"."""
    method, recipe = who(name), name.partition(" ")[2]
    how = "" if recipe in ("", method) else f", {styles.SAID.get(recipe, recipe.replace('_', ' '))}"
    return label(method) + how


def png(fig: Figure) -> bytes:
    """Return the figure as a picture for a widget, and close it; a point has two pixels a side."""
    plt.close(fig)  # first: a cell that ends in another thread shows what is open, and resizes it
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=2 * SHOWN_DPI)
    return buffer.getvalue()


def save(fig: Figure, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into the run's folder; the same figure gives the same bytes.

    `alkit run --record` copies them to `figures/`.
    """
    folder = Path(os.environ.get(FOLDER) or runs_dir() / name)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with mpl.rc_context({"svg.hashsalt": "alkit"}):
        # neither a date nor matplotlib's version: they would change every file without need
        fig.savefig(png, dpi=SAVED_DPI, facecolor="white", metadata={"Software": None})
        fig.savefig(svg, facecolor="white", metadata={"Date": None, "Creator": None})
    return [png, svg]


def _of(method: str) -> Sequence[str]:
    if method not in styles.METHODS:
        raise ValueError(f"unknown method {method!r}: known are {', '.join(styles.METHODS)}")
    return styles.METHODS[method]
