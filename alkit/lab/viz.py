"""One look for all figures: theme, names, colours and markers, Gantt charts, saving."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import pandas as pd
from IPython.core.pylabtools import print_figure
from IPython.display import DisplayHandle, Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.base import paths
from alkit.lab.results import FOLDER
from alkit.schedule.timeline import Timeline

SINGLE, WIDE = (5.0, 3.2), (8.0, 3.0)  # inches
SHOWN_DPI = 100  # points of the screen per inch, in dashboards as in cells
SAVED_DPI = 160

Shown = Literal["stage", "batch", "micro"]

# how figures show methods, tasks and data sets, as plain data:
# colours and markers go round by place, so a new name goes to the end
METHODS = """
    al al_m al_fm al_pipeline local local_pipeline bp
    fixed_codes linear cosine predsim dgl scpl
    seq ddg ddg_barrier ddg_inplace fr fr_barrier fr_1f1b
    pipedream pipedream_recompute pipedream_sync pipedream_inplace 2bw
    gpipe 1f1b zero_bubble interleaved_1f1b looped_bfs zbv dualpipev torch_1f1b
    fed central splitfed pipelearn
    ddp ddp_fewer ddp_freeze_cache one_freeze_cache head_cache
    freeze freeze_pipe_cache freeze_pipe_dp elastic
    dtp dtp_exact dtp_matched dtp_frozen dtp_fused dtp_fixed vanilla_dtp tp fa dfa shallow
    dtp_orthogonal ddtp fsdp ddp_checkpoint ddp_lora
""".split()
BASELINES = ("bp", "seq", "central")  # grey
MARKERS = "osv^<>DPXp*"  # as many as share no divisor with the colours: no two names look alike
CAPITALS = "1f1b al bfs bp ddg ddp ddtp dfa dgl dp dtp fa fr fsdp lstm scpl tp vgg zbv".split()
WORDS = {
    "2bw": "PipeDream-2BW",
    "al_fm": "AL-FM",
    "al_m": "AL-M",
    "cosine": "cosine heads",
    "dualpipev": "DualPipeV",
    "fed": "federated",
    "fixed_codes": "local classifiers, fixed codes",
    "gpipe": "GPipe",
    "linear": "linear heads",
    "local": "local classifiers",
    "original": "as published",
    "pipedream": "PipeDream",
    "pipelearn": "PipeLearn",
    "seq": "sequential",
    "splitfed": "SplitFed",
    # data and networks
    "ag_news": "AG News",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "dbpedia": "DBpedia",
    "imdb": "IMDb",
    "resnet": "ResNet-18",
    "resnet20": "ResNet-20",
    "sst2": "SST-2",
    "tiny_imagenet": "Tiny ImageNet",
}
WORDS |= {word: word.upper() for word in CAPITALS}
TASKS = "forward backward update backward_input backward_weight send learn target".split()
# the palettes of seaborn, pastel and colorblind: to import it takes a second
PASTEL = "#a1c9f4 #ffb482 #8de5a1 #ff9f9b #d0bbff #debb9b #fab0e4 #cfcfcf".split()
KINDS = dict(zip(TASKS, PASTEL, strict=True))
PALETTE = "#0173b2 #de8f05 #029e73 #d55e00 #cc78bc #ca9161 #fbafe4 #949494 #ece133 #56b4e9".split()


def set_theme() -> None:
    """Set the theme of the house: white grid, colour-blind palette, opaque background.

    A notebook shows its figures also where `MPLBACKEND` names Agg, as machines without a screen do.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell and hasattr(shell, "kernel") and plt.get_backend().lower() == "agg":
        shell.run_line_magic("matplotlib", "inline")
    cycle = {"axes.prop_cycle": f"cycler(color={PALETTE})"}
    plt.style.use(["seaborn-v0_8-whitegrid", "alkit.lab.theme", cycle])


def colour(name: str) -> str:
    """Return the colour of a method, however it was run ("al dgl" as DGL); of others, grey."""
    own = _method(name)
    if own not in METHODS or own in BASELINES:
        return "0.35" if own in BASELINES else "0.6"
    palette = PALETTE[:7] + PALETTE[9:]  # no grey: baselines; no yellow: white swallows it
    return palette[METHODS.index(own) % len(palette)]


def marker(method: str) -> str:
    """Return the marker of a method."""
    return MARKERS[METHODS.index(_method(method)) % len(MARKERS)]


def label(name: str) -> str:
    """Return a method, recipe, data set or network as people write it: "AL-FM", "FR, new noise"."""
    recipe = name.partition(" ")[2]
    name = recipe if recipe in METHODS else name
    words = re.sub(r"\w+", lambda each: WORDS.get(each[0], each[0]), name.replace("_", " "))
    return WORDS.get(name, words)


def _method(name: str) -> str:
    method, _, recipe = name.partition(" ")
    return recipe if recipe in METHODS else method.rstrip(",")


def gantts(timelines: Mapping[str, Timeline], title: str, *, number: Shown = "stage") -> Figure:
    """Draw when resources were busy, a chart a timeline, on one scale of time; keys are titles.

    A row a resource, a box a task: its colour is the kind, light and dark alternate with the batch.
    Measured and simulated timelines look the same.

    Args:
        number: the meaning of the number in a box; where a resource has one layer, batches or
            micro-batches say more.
    """
    heights = [0.625 + 0.25 * len(timeline.resources) for timeline in timelines.values()]
    span_s = max(timeline.span_s for timeline in timelines.values())
    shape: dict[str, Any] = {"figsize": (WIDE[0], sum(heights) + 0.5), "height_ratios": heights}
    fig, axes = plt.subplots(len(timelines), sharex=True, squeeze=False, **shape)
    for ax, (name, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
        _gantt(ax, timeline, number, span_s)
        ax.set_title(name)
    clock = "simulated time" if timeline.clock == "virtual" else "seconds"
    ax.set(xlabel=f"{clock}; number: {number}, shade: every other batch", xlim=(0, span_s or 1))
    every = [i for timeline in timelines.values() for i in timeline.intervals]
    seen = {i.kind for i in every if i.end_s > i.start_s}
    handles = [Patch(color=c, label=kind) for kind, c in KINDS.items() if kind in seen]
    fig.legend(handles=handles, loc="outside lower right", ncols=5, frameon=False)
    fig.suptitle(title, x=0.01, ha="left", wrap=True)
    return fig


def _gantt(ax: Axes, timeline: Timeline, number: Shown, span_s: float) -> None:
    rows = pd.DataFrame(timeline.intervals)
    rows["shade"] = 1.0 - 0.4 * (rows.batch % 2)
    for (kind, shade), own in rows.groupby(["kind", "shade"]):
        look: dict[str, Any] = {"color": KINDS.get(kind, "0.85"), "alpha": shade}
        y, width = own.resource.map(timeline.resources.index), own.end_s - own.start_s
        bars = ax.barh(y, width, left=own.start_s, edgecolor="white", linewidth=0.5, **look)
        told = own[number].astype(str).where(width > 0.018 * span_s, "")
        ax.bar_label(bars, told, label_type="center", fontsize=7, color="0.1")
    ax.set_yticks(range(len(timeline.resources)), timeline.resources)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")


def live(*columns: str) -> Callable[[Mapping[str, Any], object], None]:
    """Draw columns of the history in the cell that trains, again after each epoch.

    By default all losses. Example: `alkit.fit(..., callbacks=[alkit.lab.live("val_acc")])`.
    """
    cell, rows = DisplayHandle(), list[Mapping[str, Any]]()

    def draw(row: Mapping[str, Any], model: object) -> None:
        rows.append(row)
        history = pd.DataFrame(rows).set_index("epoch")
        shown = list(columns) or [name for name in history if name.endswith("loss")]
        picture = Image(png(history[shown].plot(figsize=SINGLE, marker="o").figure), width=500)
        (cell.display if len(rows) == 1 else cell.update)(picture)

    return draw


def png(fig: Figure) -> bytes:
    """Return the figure as a picture for a widget, and close it; a point has two pixels a side."""
    plt.close(fig)  # first: a cell that ends in another thread shows what is open, and resizes it
    return print_figure(fig, dpi=2 * SHOWN_DPI, bbox_inches=None)


def save(fig: Figure, name: str) -> None:
    """Write `name`.png and `name`.svg into the folder of the run; equal figures, equal bytes."""
    folder = Path(os.environ.get(FOLDER) or paths.root() / "runs" / name)
    folder.mkdir(parents=True, exist_ok=True)
    # neither a date nor the version of matplotlib: they would change every file without need
    fig.savefig(folder / f"{name}.png", dpi=SAVED_DPI, metadata={"Software": None})
    fig.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
