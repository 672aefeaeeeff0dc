"""The picture on README's and the site's first page: four ways to keep four workers busy."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.figures import titles, viz
from studies.all_methods import tables as axis_tables

SHOWN = ("bp", "1f1b", "pipedream", "al_pipeline")
BATCHES = 6
LARGE, USUAL = 17, 15  # points, of ten inches: readable at half the width


def front(rows: pd.DataFrame) -> Figure:
    """Draw six batches on four workers by backprop, 1F1B, PipeDream and the AL pipeline."""
    lines = {name: axis_tables.unit_clock(name, BATCHES) for name in SHOWN}
    fig, ax = plt.subplots(figsize=(10, 4.2))
    ends = {name: line.span_s for name, line in lines.items()}
    for at, (name, line) in enumerate(lines.items()):
        for i in line.intervals:
            worker = line.resources.index(i.resource)
            place = {"y": 5 * at + worker, "left": i.start_s, "width": i.end_s - i.start_s}
            shade = 1.0 if i.batch % 2 == 0 else 0.55
            ax.barh(**place, height=0.9, color=viz.kind_colour(i.kind), alpha=shade)
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
    handles = [Patch(color=viz.kind_colour(k), label=k) for k in ("forward", "backward", "update")]
    fig.legend(
        handles=handles,
        loc="center right",
        bbox_to_anchor=(0.99, 0.42),
        fontsize=USUAL,
        frameon=False,
    )
    titles.title(
        fig,
        "Simulated, equal blocks: the AL pipeline takes {share:.2f} of backprop's time",
        share=titles.ratio(ends["al_pipeline"], ends["bp"]),
    )
    fig._suptitle.set_fontsize(LARGE)
    return fig
