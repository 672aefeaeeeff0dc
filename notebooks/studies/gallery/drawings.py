"""Drawings of ideas: a stashed weight, a feedback loop, a pipeline that freezes.

They show no measurement; what they count is in the notebooks beside them.
"""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from alkit.delayed.schedules import schedule_for
from alkit.figures import titles, viz

Place = tuple[float, float]
MODULES, SHOWN = 3, 6  # of PipeDream's drawing: modules, and batches of its first device
FROZEN = {0: (2, 1), 4: (2, 1), 7: (1, 2)}  # frozen layers -> stages, replicas; as notebook 41 has
LAYERS = 12


def _box(ax: Axes, at: Place, said: str, colour: str, size: Place = (0.8, 0.5)) -> None:
    x, y = at[0] - size[0] / 2, at[1] - size[1] / 2
    ax.add_patch(FancyBboxPatch((x, y), *size, boxstyle="round,pad=0.02", fc=colour, ec="0.4"))
    # what stands on white turns by night with it
    ink = None if colour == "white" else "black"
    ax.text(*at, said, ha="center", va="center", fontsize=9, color=ink)


def _arrow(ax: Axes, start: Place, end: Place, *, bend: float = 0.0, said: str = "") -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "color": "0.45", "shrinkA": 3, "shrinkB": 3}
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **style))
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.16
    ax.text(*middle, said, ha="center", va="bottom", fontsize=8)


def stash(rows: pd.DataFrame) -> Figure:
    """Draw a device's tasks in order, and the weights that are kept for backwards to come."""
    fig, ax = plt.subplots(figsize=(7.2, 2.6))
    order = list(schedule_for("pipedream", MODULES).order(0, range(SHOWN)))
    updates, kept, most = 0, {}, 0
    for at, task in enumerate(task for task in order if task.kind != "update"):
        if task.kind == "forward":
            kept[task.batch] = updates
        version = kept[task.batch]
        colour = viz.kind_colour(task.kind)
        _box(ax, (at, 1.0), f"{task.kind[0].upper()}{task.batch}", colour, (0.7, 0.5))
        ax.text(at, 0.55, f"weights {version}", ha="center", fontsize=7)
        held = sorted(set(kept.values()))
        most = max(most, len(held))
        for level, each in enumerate(held):
            _box(ax, (at, -0.25 - 0.42 * level), str(each), viz.kind_colour("update"), (0.4, 0.26))
        if task.kind == "backward":
            del kept[task.batch]
            updates += 1
    ax.text(-0.9, -0.25, "kept", ha="right", va="center", fontsize=8)
    ax.set(xlim=(-1.6, at + 0.6), ylim=(-1.6, 1.5))
    ax.axis("off")
    titles.title(ax, "PipeDream's lowest device keeps old weights for backwards to come")
    return fig


def feedback_loop(rows: pd.DataFrame) -> Figure:
    """Draw how one block's feedback learns by noise alone, without any other block."""
    fig, ax = plt.subplots(figsize=(7.2, 2.8))
    forward, back = viz.kind_colour("forward"), viz.kind_colour("backward")
    _box(ax, (0.0, 1.0), "s", "white", (0.5, 0.4))
    _box(ax, (2.2, 1.0), "F: weights W", forward, (1.5, 0.5))
    _box(ax, (4.4, 1.0), "F(s)", "white", (0.7, 0.4))
    _box(ax, (2.2, -0.4), "G: weights B", back, (1.5, 0.5))
    _box(ax, (0.0, -0.4), "G(...)", "white", (0.7, 0.4))
    _box(ax, (-1.9, 0.3), "loss of\nthis block", "white", (1.1, 0.7))
    _arrow(ax, (0.3, 1.0), (1.4, 1.0), said="+ dx")
    _arrow(ax, (3.0, 1.0), (4.0, 1.0))
    _arrow(ax, (4.4, 0.75), (3.05, -0.35), bend=-0.35)
    ax.text(4.25, 0.05, "+ dy", fontsize=8)
    _arrow(ax, (1.4, -0.4), (0.4, -0.4))
    _arrow(ax, (-0.4, -0.4), (-1.4, 0.0), bend=-0.2)
    _arrow(ax, (-0.3, 1.0), (-1.5, 0.65), bend=0.2)
    _arrow(ax, (-1.9, -0.1), (2.2, -0.7), bend=0.35)
    ax.text(0.2, -1.35, "K times per batch: a step of B, and of nothing else", fontsize=8)
    ax.set(xlim=(-2.8, 5.0), ylim=(-1.6, 1.5))
    ax.axis("off")
    titles.title(ax, "A block's feedback learns from noise, without any other block")
    return fig


def freezing(rows: pd.DataFrame) -> Figure:
    """Draw three epochs on two devices: layers freeze, stages become replicas."""
    fig, axes = plt.subplots(1, len(FROZEN), figsize=(7.6, 2.3), sharey=True)
    for ax, (frozen, (stages, replicas)) in zip(axes, FROZEN.items(), strict=True):
        active = LAYERS - frozen
        for device in range(2):
            first = frozen + (device * active // stages if stages > 1 else 0)
            last = frozen + ((device + 1) * active // stages if stages > 1 else active)
            for layer in range(LAYERS):
                mine = first <= layer < last
                cold = layer < frozen and (device == 0 or replicas > 1)
                colour = viz.colour("elastic") if mine else ("0.75" if cold else "none")
                edge = "0.4" if mine or cold else "0.85"
                ax.barh(device, 0.9, left=layer, height=0.6, color=colour, edgecolor=edge)
        ax.set_yticks([0, 1], ["device 0", "device 1"])
        ax.set(xticks=[], xlabel=f"{frozen} of {LAYERS} layers frozen")
        ax.grid(visible=False)
        ax.invert_yaxis()
        titles.panel(ax, f"stages: {stages}, replicas: {replicas}")
    words = "Frozen layers (grey) leave the pipeline; devices become replicas"
    titles.title(fig, words)
    return fig
