"""PipeDream's own planner, ways to share devices between pipelines, and an oracle of best cuts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from typing import Any

import pandas as pd

from alkit.delayed.planner import GroupCosts, best_cuts, seconds_a_batch
from alkit.schedule.costs import BlockCost

__all__ = [
    "Replicated",
    "brute_force",
    "grids",
    "pipedream_plan",
]


def brute_force(method: str, costs: Sequence[BlockCost], modules: int, **limits: Any) -> float:
    """Return the shortest time a batch over all cuts, one by one: the oracle for few blocks."""
    plan = GroupCosts(method, costs, modules, **limits)
    return min(map(plan.seconds, combinations(range(1, len(costs)), modules - 1)))


@dataclass(frozen=True)
class Replicated:
    """A stage of PipeDream's plan: blocks `low` .. `high` - 1 on `workers` workers."""

    low: int
    high: int
    workers: int


Staged = tuple[float, tuple[Replicated, ...]]  # seconds a batch, and with which stages


def pipedream_plan(
    costs: Sequence[BlockCost],
    workers: int,
    bandwidth: float,
    *,
    published_code: bool = False,
) -> tuple[float, list[Replicated]]:
    """Return seconds a batch and the stages of PipeDream's dynamic program, with replication.

    A(j, m) is the least time of the slowest stage when m workers share blocks 0 .. j - 1:

        A(j, m) = min of T(0, j, m)  and, over i and m',  max(A(i, m - m'), 2 a(i) / B, T(i, j, m'))
        T(i, j, m) = max(sum of t, 4 (m - 1) sum of w / (m B)) / m

    (Harlap et al. 2018; t, a, w = seconds, output bytes and parameter bytes of a block, B =
    bandwidth.) Replicas take batches in turn and average their gradients.

    Args:
        published_code: as the published planner does it: computation and all-reduce are added
            instead of overlapped, and transfers at cuts cost nothing.
    Raises:
        ValueError: no workers, or no bandwidth.
    """
    if workers < 1 or bandwidth <= 0:
        raise ValueError(f"workers is {workers} and bandwidth {bandwidth}: both must be positive")
    seconds = list(accumulate((cost.seconds for cost in costs), initial=0.0))
    weights = list(accumulate((cost.parameter_bytes for cost in costs), initial=0.0))

    def stage_s(low: int, high: int, m: int) -> float:
        compute = seconds[high] - seconds[low]
        reduce = 4 * (m - 1) * (weights[high] - weights[low]) / (m * bandwidth)
        return (compute + reduce if published_code else max(compute, reduce)) / m

    @cache
    def best(high: int, m: int) -> Staged:
        found: Staged = stage_s(0, high, m), (Replicated(0, high, m),)
        for low in range(1, high):
            cut_s = 0.0 if published_code else 2 * costs[low - 1].output_bytes / bandwidth
            for own in range(1, m):
                rest, stages = best(low, m - own)
                slowest = max(rest, cut_s, stage_s(low, high, own))
                if slowest < found[0]:
                    found = slowest, (*stages, Replicated(low, high, own))
        return found

    slowest, stages = best(len(costs), workers)
    return slowest, list(stages)


def grids(costs: Sequence[BlockCost], devices: int, bandwidth: float, samples: int) -> pd.DataFrame:
    """Return all ways to share devices between R equal pipelines of K modules, R x K = devices.

    Every module's gradients are averaged over its R replicas before each update, beside the
    computation of others.

    Returns:
        Columns R, K, cuts, seconds (a batch of each pipeline), samples_s of all together; the best
        first.
    """
    rows = []
    for modules in range(1, min(devices, len(costs)) + 1):
        if devices % modules:
            continue
        replicas = devices // modules
        cuts = best_cuts("pipedream", costs, modules, bandwidth=bandwidth)
        bounds = [0, *cuts, len(costs)]
        heaviest = max(
            sum(cost.parameter_bytes for cost in costs[low:high])
            for low, high in zip(bounds, bounds[1:], strict=False)
        )
        reduce_s = 2 * (replicas - 1) / replicas * heaviest / bandwidth
        seconds = max(seconds_a_batch("pipedream", costs, cuts), reduce_s)
        rows.append((replicas, modules, cuts, seconds, replicas * samples / seconds))
    made = pd.DataFrame(rows, columns=["R", "K", "cuts", "seconds", "samples_s"])
    return made.sort_values("samples_s", ascending=False, ignore_index=True)
