"""Figures of the notebooks of split learning."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.figures import viz
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from alkit.split.schedule import LANES, split

__all__ = ["break_even", "lanes", "micro_batches", "plan"]


def lanes(rows: pd.DataFrame, micro: int = 3) -> Figure:
    """Draw the four lanes of an iteration, in series and in micro-batches, in virtual time."""
    seconds = {"forward": 3.0, "backward": 3.0, "send": 3.0}

    def duration(task: Task, parts: int) -> float:
        if task.kind == "update":
            return 0.0
        at_server = task.stage == 1 and task.kind != "send"
        return seconds[task.kind] / parts / (2 if at_server else 1)

    lines = {}
    for parts in (1, micro):
        found = simulate(split(parts), lambda task, n=parts: duration(task, n), 1)
        named = (i._replace(resource=LANES[int(i.resource.split()[1])]) for i in found.intervals)
        lines[parts] = Timeline.of((i for i in named if i.end_s > i.start_s), LANES)
    gain = lines[1].span_s / lines[micro].span_s
    figure = viz.gantts(
        {"one batch: one lane works, three wait": lines[1], f"{micro} micro-batches": lines[micro]},
        f"At these costs {micro} micro-batches make an iteration {gain:.2f} times as fast",
        number="micro",
    )
    figure.axes[-1].set_xlabel(
        "time; a batch takes 3 a lane, on the device 3 forward and 3 backward"
    )
    return figure


def micro_batches(rows: pd.DataFrame) -> Figure:
    """Draw seconds an iteration over micro-batches, measured and predicted, by link and cut."""
    drawn = rows[rows.metric.isin(["iteration_s", "predicted_s"])].astype({"value": float})
    fig, ax = plt.subplots(figsize=(7, 3.4))
    palette = iter(viz.shades(drawn.groupby(["link", "cut"]).ngroups))
    for (place, cut), own in drawn.groupby(["link", "cut"]):
        wide, shade = own.pivot(index="micro", columns="metric", values="value"), next(palette)
        ax.plot(wide.index, wide.iteration_s, "o-", color=shade, label=f"{place}, cut {int(cut)}")
        ax.plot(wide.index, wide.predicted_s, "--", color=shade, lw=1)
    best = rows[rows.metric == "times_as_fast"].value.astype(float).max()
    ax.set(xlabel="micro-batches", ylabel="seconds an iteration", ylim=0, xticks=wide.index)
    ax.set_title(f"Overlap is up to {best:.2f} times as fast; dashed: predicted")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def plan(rows: pd.DataFrame) -> Figure:
    """Draw measured against predicted seconds of the candidates that were run."""
    own = rows[rows.metric.isin(["iteration_s", "predicted_s"])].astype({"value": float})
    wide = own.pivot(index=["cut", "micro"], columns="metric", values="value")
    wide = wide.sort_values("predicted_s")
    fig, ax = plt.subplots(figsize=(6.5, 0.9 + 0.33 * len(wide)))
    at = range(len(wide))
    ax.barh(at, wide.iteration_s, color=viz.colour("pipelearn"), label="measured")
    ax.plot(wide.predicted_s, at, "k|", ms=14, label="predicted")
    names = [f"cut {cut:.0f}, micro-batches {micro:.0f}" for cut, micro in wide.index]
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    lost = float(rows[rows.metric == "regret"].value.iloc[0])
    tried = int(rows[rows.metric == "candidates"].value.iloc[0])
    said = f"The plan picked of {tried} loses {lost:.0f} % to the best one measured"
    ax.set(xlabel="seconds an iteration", title=said)
    ax.legend(frameon=False)
    return fig


KINDS = ["central", "fed", "splitfed", "pipelearn"]


def break_even(rows: pd.DataFrame) -> Figure:
    """Draw who is fastest by device speed and link speed; numbers are times federated learning."""
    rows = rows.astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    wide["winner"] = wide[KINDS].idxmin(axis=1)
    wide["over fed"] = wide.fed / wide[["central", "splitfed", "pipelearn"]].min(axis=1)
    drawn = wide.reset_index()
    shown = drawn.model.unique()
    fig, axes = plt.subplots(1, len(shown), figsize=(4.6 * len(shown), 3.6), squeeze=False)
    places = {"index": "slower", "columns": "mbit"}
    style = {"annot_kws": {"color": "black"}, "cbar": False, "alpha": 0.7, "fmt": "g"}
    style["cmap"] = ListedColormap([viz.colour(kind) for kind in KINDS])
    for ax, model in zip(axes[0], shown, strict=True):
        own = drawn[drawn.model == model]
        codes = own.assign(code=own.winner.map(KINDS.index)).pivot(**places, values="code")
        labels = own.pivot(**places, values="over fed").round(1)
        sns.heatmap(codes, ax=ax, annot=labels, vmin=0, vmax=3, **style)
        ax.set(xlabel="uplink, Mbit/s", ylabel="device slower by", title=model)
    # only who wins somewhere, as light as in the map
    won = [kind for kind in KINDS if kind in set(drawn.winner)]
    handles = [Patch(color=viz.colour(kind), label=viz.label(kind), alpha=0.7) for kind in won]
    fig.legend(handles=handles, ncols=len(won), loc="outside lower center", frameon=False)
    share = (drawn.winner == "pipelearn").mean()
    said = f"PipeLearn is fastest in {100 * share:.0f} % of these places; numbers: over federated"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig
