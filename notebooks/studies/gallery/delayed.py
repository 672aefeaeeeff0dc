"""Figures of the notebooks of delayed gradients."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from alkit.delayed.methods import ORDERS
from alkit.delayed.schedules import schedule_for
from alkit.figures import titles, viz
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from studies.delayed import accuracy_study as delayed_study
from studies.delayed import characters_study


def schedules(rows: pd.DataFrame, modules: int = 3, batches: int = 5) -> Figure:
    """Draw the work of three modules over simulated time, one chart per method."""
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
    share = titles.ratio(lines["pipedream"].span_s, lines["seq"].span_s)
    words = "Simulated: {n} batches by PipeDream take {share:.2f} of sequential training's time"
    figure = viz.gantts(named, words, number="batch", n=str(batches), share=share)
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
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    low, high = np.sort(wide.drop("seq")[0])[[0, -1]]
    words = "Stale updates of module {at} keep cosines of {low:.2f} to {high:.2f}"
    titles.title(ax, words, at="0", low=titles.value(low), high=titles.value(high))
    return fig


def resnet(rows: pd.DataFrame) -> Figure:
    """Draw the points each method is behind sequential training, with paired t intervals."""
    lost = delayed_study.gaps(rows).sort_values(["modules", "points"], ignore_index=True)
    fig, ax = plt.subplots(figsize=(6, 0.9 + 0.45 * len(lost)))
    for at, row in lost.iterrows():
        style = {"color": viz.colour(row.method), "marker": viz.marker(row.method), "capsize": 3}
        spread = None if np.isnan(row.low) else [[row.points - row.low], [row.high - row.points]]
        ax.errorbar(row.points, at, xerr=spread, **style)
    names = [f"{viz.label(row.method)}, {row.modules} modules" for row in lost.itertuples()]
    ax.set_yticks(range(len(lost)), names)
    ax.axvline(0, color="0.35", lw=1)
    ax.margins(y=0.2)
    ax.set(xlabel="points behind sequential training, with paired t intervals")
    cost = lost[lost.decided.astype(bool) & (lost.modules == lost.modules.max())]
    words = "{n}: no loss against sequential training is decided"
    if len(cost):
        lows = "{low:.1f}" if len(cost) == 1 else "{low:.1f} to {high:.1f}"
        words = f"{{most}} modules, {{n}}: stale gradients cost {lows} points"
    numbers = {"low": titles.value(cost.points.min()), "high": titles.value(cost.points.max())}
    about = {"most": str(lost.modules.max()), "n": viz.seeds(lost.seeds.min())}
    titles.title(ax, words, **about, **(numbers if len(cost) else {}))
    return fig


def times(rows: pd.DataFrame) -> Figure:
    """Draw measured and predicted seconds per batch on two processes, by method."""
    timed = rows[rows.metric.isin(["batch_s", "predicted_s"])].astype({"value": float})
    table = timed.pivot(index="method", columns="metric", values="value").sort_values("batch_s")
    fig, ax = plt.subplots(figsize=(6, 0.6 + 0.4 * len(table)))
    colours = [viz.colour(method) for method in table.index]
    ax.barh(range(len(table)), table.batch_s, color=colours)
    ax.plot(table.predicted_s, range(len(table)), "k|", ms=14, label="predicted")
    names = [viz.label(m) if m != "1f1b" else "torch's 1F1B" for m in table.index]
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    share = titles.ratio(table.batch_s["pipedream"], table.batch_s["1f1b"])
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="seconds per batch after fill, median")
    ax.legend(frameon=False)
    words = "Two processes: PipeDream takes {share:.2f} of exact 1F1B's time per batch"
    titles.title(ax, words, share=share)
    return fig


def characters(rows: pd.DataFrame) -> Figure | None:
    """Draw what old gradients cost a character model, by contrast, with paired t intervals."""
    gaps = characters_study.contrast_gaps(rows)
    return characters_study.draw_contrasts(gaps) if gaps else None


def orders(rows: pd.DataFrame) -> Figure | None:
    """Draw measured and simulated idle shares and peaks of graphs on two workers, by order."""
    own = rows[rows.metric.isin(["idle", "idle_simulated", "peak", "peak_simulated"])]
    if own.empty:
        return None
    table = own.astype({"value": float}).pivot(index="method", columns="metric", values="value")
    table = table.loc[[method for method in ORDERS if method in table.index]]
    fig, axes = plt.subplots(1, 2, figsize=viz.WIDE, sharey=True)
    colours = [viz.colour(method) for method in table.index]
    for ax, metric, scale in zip(axes, ("idle", "peak"), (100, 1), strict=True):
        ax.barh(range(len(table)), scale * table[metric], color=colours, label="measured")
        simulated = scale * table[f"{metric}_simulated"]
        ax.plot(simulated, range(len(table)), "k|", ms=12, label="simulated")
        ax.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(table)), [viz.label(method) for method in table.index])
    axes[0].invert_yaxis()
    axes[0].set(xlabel="a worker's idle share, %, median")
    axes[1].set(xlabel="graphs held at most by a worker, MiB")
    axes[1].legend(frameon=False, fontsize=8)
    low, high = titles.value(100 * table.idle.min()), titles.value(100 * table.idle.max())
    words = "One gradient in {n} orders: two workers idle {low:.0f} to {high:.0f} %"
    titles.title(fig, words, n=str(len(table)), low=low, high=high)
    return fig
