"""The bytes that a rank holds, by row and part, against a budget."""

from collections.abc import Callable, Mapping
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from alkit.elastic.memory import Budget
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.engine.optimizers import made
from alkit.engine.trainer import Record
from alkit.lab import results, viz
from studies.elastic.tasks import Task

PARTS = ["weights", "frozen", "gradients", "moments", "activations", "message"]
MB = 1e6


def record(run: results.Run, records: Mapping[str, Record], task: Task, seed: int) -> None:
    """Write every rank's bytes by part, at its fullest, and the accuracy into a run's record."""
    for method, one in records.items():
        about = {"method": method, "data": task.name, "seed": seed}
        for rank, own in one.details.held.groupby("rank"):
            fullest = own.loc[own.total.idxmax()]
            for part in [*PARTS, "total"]:
                extra = {"rank": int(rank)}
                run.record(part, int(fullest[part]), unit="B", extra=extra, **about)
        right = one.test_correct
        if right is not None:
            n = len(right)
            run.record("accuracy", 100 * float(right.mean()), unit="%", n=n, **about)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a method and rank, of its parts in MB; the last recorded seed counts."""
    own = rows[rows.metric.isin([*PARTS, "total"])].astype({"value": float, "rank": int})
    wide = own.pivot_table(
        index=["method", "rank"], columns="metric", values="value", aggfunc="last", sort=False
    )
    return wide[[*PARTS, "total"]] / MB


def picture(held: pd.DataFrame, budget: int) -> Figure:
    """Draw `table`'s rows as bars of parts, with the budget in bytes as a line."""
    fig, ax = plt.subplots(figsize=(8.0, 0.9 + 0.32 * len(held)))
    bars = [f"{viz.label(method)}, rank {rank}" for method, rank in held.index]
    left = pd.Series(0.0, held.index)
    shown = held.assign(
        activations=held[["activations", "message"]].max(axis=1)  # never both at one time
    ).drop(columns=["message", "total"])
    for part, colour in zip(shown, viz.shades(len(shown.columns)), strict=True):
        ax.barh(bars, shown[part], left=left, color=colour, label=part)
        left = left + shown[part]
    ax.axvline(budget / MB, color="black", linewidth=1.5, label="budget")
    ax.set(xlabel="MB per process, at its fullest")
    ax.invert_yaxis()
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def budget(network: Network, optimizer: Callable[..., torch.optim.Optimizer]) -> Budget:
    """Return what counts the bytes of a network's layouts under an optimiser."""
    return Budget(network, partial(made, optimizer))


def least_budgets(network: Network, counted: Budget, *, devices: int) -> pd.DataFrame:
    """Return what a rank holds before its first activation, without freezing, in MB.

    A row a number of stages and part, the fullest rank's; one stage is data parallel training.
    """
    found = {}
    for stages in [n for n in (1, 2, 4, 8) if n <= devices]:
        plan = network.planner(Settings(stages=stages), devices=devices, batch=devices).at(0)
        ranks = [counted.held(plan, stage) for stage in range(stages)]
        found[stages] = max(ranks, key=lambda rank: rank.total).plain()
    frame = pd.DataFrame(found).T / MB
    return frame.drop(columns=["frozen", "activations"]).rename_axis("stages")
