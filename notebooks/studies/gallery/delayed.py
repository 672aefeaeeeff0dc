"""Figures of the notebooks of delayed gradients."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from alkit.delayed.schedules import schedule_for
from alkit.figures import viz
from alkit.records.comparisons import Gap
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from studies import (
    characters_study,
    delayed_study,
)

__all__ = ["bert", "characters", "cuts", "directions", "resnet", "schedules", "times"]


def schedules(rows: pd.DataFrame, modules: int = 3, batches: int = 5) -> Figure:
    """Draw who is busy when, by method, in virtual time; forward 1, backward 2, update 0."""
    shown = ("seq", "ddg_barrier", "ddg", "fr", "pipedream")
    costs = {"forward": 1.0, "backward": 2.0, "update": 0.1}

    def seconds(method: str, task: Task) -> float:
        again = costs["forward"] if method == "fr" and task.stage < modules - 1 else 0.0
        return costs[task.kind] + (again if task.kind == "backward" else 0.0)

    lines = {
        method: simulate(schedule_for(method, modules), lambda t, m=method: seconds(m, t), batches)
        for method in shown
    }
    named = {f"{viz.label(m)}: {line.span_s:g}": line for m, line in lines.items()}
    best = min(shown, key=lambda method: lines[method].span_s)
    title = f"{viz.label(best)} needs the least time for {batches} batches"
    figure = viz.gantts(named, title, number="batch")
    figure.axes[-1].set_xlabel("time, in forwards of a module; a backward takes two")
    return figure


def directions(rows: pd.DataFrame) -> Figure:
    """Draw the cosine of every module's update with true backprop's, by method."""
    own = rows[rows.metric == "cosine"].astype({"value": float, "module": int})
    wide = own.pivot(index="method", columns="module", values="value")
    fig, ax = plt.subplots()
    for method, values in wide.iterrows():
        style = {"color": viz.colour(str(method)), "marker": viz.marker(str(method))}
        ax.plot(range(wide.shape[1]), values, label=viz.label(str(method)), **style)
    ax.set(xlabel="module", ylabel="cosine with true backprop, median", xticks=range(wide.shape[1]))
    ax.set_title(f"PipeDream's delays: cosines down to {wide.loc['pipedream'].min():.2f}")
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def cuts(rows: pd.DataFrame) -> Figure:
    """Draw by how much cuts from a profile should beat uniform ones, by method and modules."""
    own = rows[rows.metric == "gain"].astype({"value": float, "modules": int})
    fig, ax = plt.subplots()
    for method, part in own.groupby("method", sort=False):
        style = {"color": viz.colour(method), "marker": viz.marker(method)}
        ax.plot(part.modules, part.value, label=viz.label(method), ms=4, **style)
    ax.axhline(1, color="0.6", lw=0.8)
    ax.set(xlabel="modules", ylabel="uniform over best", xticks=sorted(own.modules.unique()))
    ax.set_title(f"Reckoned: best cuts up to {own.value.max():.2f} times as fast as uniform ones")
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def resnet(rows: pd.DataFrame) -> Figure:
    """Draw the points each method is behind sequential training, with paired t intervals."""
    lost = delayed_study.gaps(rows)
    fig, ax = plt.subplots()
    for shift, (method, own) in zip((-0.06, 0.06), lost.groupby("method"), strict=False):
        style = {"color": viz.colour(method), "marker": viz.marker(method), "capsize": 3}
        spread = [(own.points - own.low).fillna(0), (own.high - own.points).fillna(0)]
        ax.errorbar(own.modules + shift, own.points, spread, label=viz.label(method), **style)
    ax.axhline(0, color="0.6", lw=0.8)
    worst = lost.loc[lost.points.idxmax()]
    ticks = sorted(lost.modules.unique())
    ax.set(xlabel="modules", ylabel="points behind sequential training", xticks=ticks)
    told = Gap(*worst[list(Gap._fields)])
    ax.set_title(f"{viz.label(worst.method)}, {worst.modules} modules: {told} points behind")
    ax.legend(frameon=False)
    return fig


def times(rows: pd.DataFrame) -> Figure:
    """Draw seconds a batch on two ranks, and what the clock predicts of them."""
    timed = rows[rows.metric.isin(["batch_s", "predicted_s"])].astype({"value": float})
    table = timed.pivot(index="method", columns="metric", values="value").sort_values("batch_s")
    fig, ax = plt.subplots(figsize=(6, 0.6 + 0.4 * len(table)))
    colours = [viz.colour(method) for method in table.index]
    ax.barh(range(len(table)), table.batch_s, color=colours)
    ax.plot(table.predicted_s, range(len(table)), "k|", ms=14, label="predicted")
    names = [viz.label(m) if m != "1f1b" else "torch's 1F1B" for m in table.index]
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    gain = table.batch_s["1f1b"] / table.batch_s["pipedream"]
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="seconds a batch after fill, median")
    ax.set_title(f"PipeDream, stale: {gain:.2f} times torch's exact 1F1B")
    ax.legend(frameon=False)
    return fig


def bert(rows: pd.DataFrame) -> Figure:
    """Draw the losses of a reduced BERT over the batches at its middle rate, by method."""
    final = rows[rows.metric == "final_loss"].astype({"value": float})
    middle = sorted(final.lr.unique())[final.lr.nunique() // 2]
    most = int(final.modules.max())
    at = (rows.lr == middle) & rows.modules.isin([1, most])
    fig, ax = plt.subplots()
    for method, group in rows[at & (rows.metric == "curve")].groupby("method", sort=False):
        values = np.mean(group.value.tolist(), axis=0)
        over = (np.arange(len(values)) + 1) * group.steps.iloc[0] / len(values)
        style = {"color": viz.colour(method), "ls": ":" if "," in method else "-"}
        ax.plot(over, values, label=viz.label(method), **style)
    ends = final[(final.lr == middle) & final.modules.isin([1, most])]
    ends = ends.groupby("method").value.mean()
    apart = ends.drop("seq").median() - ends["seq"] if "seq" in ends else float("nan")
    ax.set(xlabel="batch", ylabel="loss, nats")
    seeds = final.seed.nunique()
    said = f"{most} modules, rate {middle:g}: stale methods end {apart:.2f} above sequential"
    ax.set_title(f"{said} (n = {seeds})")
    ax.legend(frameon=False)
    return fig


def characters(rows: pd.DataFrame) -> Figure | None:
    """Draw what old gradients cost a character model, by contrast, with paired t intervals."""
    gaps = characters_study.contrast_gaps(rows)
    return characters_study.draw_contrasts(gaps) if gaps else None
