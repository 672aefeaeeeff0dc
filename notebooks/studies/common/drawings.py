"""Drawings that several pages share: README's picture of four workers, and one AL layer."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from alkit.lab import viz
from alkit.lab.viz import KINDS
from studies.all_methods import tables as axis_tables

SHOWN = ("bp", "1f1b", "pipedream", "al_pipeline")
BATCHES = 6
LARGE, USUAL = 17, 15  # points, of ten inches: readable at half the width
BOXES: dict[str, tuple[float, float]] = {  # name -> x, y
    "x": (0.0, 1.0),
    "f": (1.2, 1.0),
    "s": (2.4, 1.0),
    "b": (2.4, 0.5),
    "y": (0.0, -0.2),
    "g": (1.2, -0.2),
    "t": (2.4, -0.2),
    "h": (1.2, -0.8),
}


def front() -> Figure:
    """Draw six batches on four workers by backprop, 1F1B, PipeDream and the AL pipeline."""
    lines = {name: axis_tables.unit_clock(name, BATCHES) for name in SHOWN}
    fig, ax = plt.subplots(figsize=(10, 4.2))
    ends = {name: line.span_s for name, line in lines.items()}
    for at, (name, line) in enumerate(lines.items()):
        for i in line.intervals:
            worker = line.resources.index(i.resource)
            place = {"y": 5 * at + worker, "left": i.start_s, "width": i.end_s - i.start_s}
            shade = 1.0 if i.batch % 2 == 0 else 0.55
            ax.barh(**place, height=0.9, color=KINDS[i.kind], alpha=shade)
        share = "" if name == "bp" else f" = {ends[name] / ends['bp']:.2f} of BP"
        ax.text(
            ends[name] + 0.8, 5 * at + 1.5, f"{ends[name]:g}{share}", va="center", fontsize=USUAL
        )
    ax.set_yticks([5 * at + 1.5 for at in range(len(SHOWN))], map(viz.label, SHOWN), fontsize=LARGE)
    ax.tick_params(axis="x", labelsize=USUAL)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.set(xlim=(0, 1.08 * max(ends.values())), ylim=(5 * len(SHOWN) - 0.6, -0.9))
    ax.set_xlabel("time, in forwards of a block; equal blocks, free links", fontsize=USUAL)
    handles = [Patch(color=KINDS[k], label=k) for k in ("forward", "backward", "update")]
    place = {"loc": "center right", "bbox_to_anchor": (0.99, 0.42)}
    fig.legend(handles=handles, fontsize=USUAL, frameon=False, **place)
    share = ends["al_pipeline"] / ends["bp"]
    title = f"Simulated, equal blocks: the AL pipeline takes {share:.2f} of backprop's time"
    fig.suptitle(title, x=0.01, ha="left", fontsize=LARGE, fontweight="bold")
    return fig


def layer() -> Figure:
    """Draw one AL layer: its four functions, its two losses, and what crosses no border."""
    fig, ax = plt.subplots(figsize=(6.4, 3.0))
    for name, (x, y) in BOXES.items():
        own = viz.colour("al") if name in "fb" else viz.colour("al_pipeline")
        face = "white" if name in "xyst" else own
        box = FancyBboxPatch((x - 0.2, y - 0.13), 0.4, 0.26, boxstyle="round,pad=0.03", fc=face)
        ax.add_patch(box)
        box.set(ec="0.3" if name in "xyst" else own, alpha=1.0 if name in "xyst" else 0.75)
        ax.text(x, y, name, ha="center", va="center", fontsize=11)
    for start, end in ("xf", "fs", "sb", "yg", "gt", "th"):
        _arrow(ax, BOXES[start], BOXES[end])
    _arrow(ax, BOXES["b"], BOXES["t"], style="<->", colour="0.1")
    told = "associated loss: b(s) learns to match t;\nno gradient flows into t"
    ax.text(2.55, 0.15, told, va="center")
    _arrow(ax, BOXES["h"], BOXES["y"], style="<->", colour="0.1")
    ax.text(1.55, -0.88, "autoencoder loss: h(t) learns to match y", va="center")
    for name in "st":
        x, y = BOXES[name]
        _arrow(ax, (x, y), (4.6, y), line="--")
        ax.text(4.65, y, "detached, to the\nnext layer", va="center")
    ax.set(xlim=(-0.4, 6.0), ylim=(-1.1, 1.3), aspect="equal")
    ax.axis("off")
    ax.set_title("Each layer has two losses, and no gradient leaves it")
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
