"""README's picture of four workers."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.lab import viz
from alkit.lab.viz import KINDS
from studies.all_methods import tables as axis_tables

SHOWN = ("bp", "1f1b", "pipedream", "al_pipeline")
BATCHES = 6
LARGE, USUAL = 17, 15  # points, of ten inches: readable at half the width


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
