"""Figures of the notebooks of split learning."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.figures import titles, viz
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from alkit.split.schedule import LANES, split


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
    gain = titles.ratio(lines[1].span_s, lines[micro].span_s)
    figure = viz.gantts(
        {"one batch: one lane works, three wait": lines[1], f"{micro} micro-batches": lines[micro]},
        "Simulated: {n} micro-batches make an iteration {gain:.2f} times as fast",
        number="micro",
        n=str(micro),
        gain=gain,
    )
    figure.axes[-1].set_xlabel(
        "time; a batch takes 3 a lane, on the device 3 forward and 3 backward"
    )
    return figure


def micro_batches(rows: pd.DataFrame) -> Figure:
    """Draw seconds per iteration over micro-batches, measured and predicted, by link and cut."""
    drawn = rows[rows.metric.isin(["iteration_s", "predicted_s"])].astype({"value": float})
    fig, ax = plt.subplots(figsize=(7, 3.4))
    palette = iter(viz.shades(drawn.groupby(["link", "cut"]).ngroups))
    for (place, cut), own in drawn.groupby(["link", "cut"]):
        wide, shade = own.pivot(index="micro", columns="metric", values="value"), next(palette)
        ax.plot(wide.index, wide.iteration_s, "o-", color=shade, label=f"{place}, cut {int(cut)}")
        ax.plot(wide.index, wide.predicted_s, "--", color=shade, lw=1)
    ax.plot([], [], "k--", lw=1, label="predicted")
    ax.set(xlabel="micro-batches", ylabel="seconds per iteration", ylim=0, xticks=wide.index)
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    measured = drawn[drawn.metric == "iteration_s"].sort_values(["link", "cut"])
    few, many = (measured[measured.micro == m].value for m in (1, measured.micro.max()))
    gain = titles.median_ratio(few, many)
    words = "Measured: {n:.0f} micro-batches make an iteration {gain:.1f} times as fast (median)"
    titles.title(ax, words, n=titles.value(measured.micro.max()), gain=gain)
    return fig


def _short(times: float) -> str:
    return f"{times:.1f}" if times < 10 else f"{times:.0f}"


KINDS = ["central", "fed", "splitfed", "pipelearn"]


def break_even(rows: pd.DataFrame) -> Figure:
    """Draw which method is fastest by device and link speed; numbers: speed over federated."""
    rows = rows.astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    wide["code"] = wide[KINDS].idxmin(axis=1).map(KINDS.index)
    wide["over fed"] = wide.fed / wide[KINDS].min(axis=1)
    drawn = wide.reset_index().astype({"slower": int, "mbit": int})
    shown = drawn.model.unique()
    fig, axes = plt.subplots(1, len(shown), figsize=(3.6 * len(shown), 3.6), squeeze=False)
    style = {"annot_kws": {"color": "black", "fontsize": 8}, "cbar": False, "alpha": 0.7}
    style["cmap"] = ListedColormap([viz.colour(kind) for kind in KINDS])
    for ax, model in zip(axes[0], shown, strict=True):
        own = drawn[drawn.model == model]
        codes, over = (
            own.pivot(index="slower", columns="mbit", values=each) for each in ("code", "over fed")
        )
        sns.heatmap(codes, ax=ax, annot=over.map(_short), fmt="", vmin=0, vmax=3, **style)
        ax.grid(visible=False)
        ax.tick_params(rotation=0)
        ax.set(xlabel="uplink, Mbit/s", ylabel="")
        titles.panel(ax, model)
    axes[0, 0].set_ylabel("device slower by (1: as fast)")
    # only who wins somewhere, as light as in the map
    won = [kind for at, kind in enumerate(KINDS) if at in set(drawn.code)]
    handles = [Patch(color=viz.colour(kind), label=viz.label(kind), alpha=0.7) for kind in won]
    fig.legend(handles=handles, ncols=len(won), loc="outside lower center", frameon=False)
    wins = drawn.code[drawn.code == KINDS.index("pipelearn")]
    words = "Simulated: PipeLearn beats the other three in {wins} of {all} places"
    titles.title(fig, words, wins=titles.count(*wins), all=titles.count(*drawn.code))
    return fig
