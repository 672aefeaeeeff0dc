"""Where to cut: the fastest modules for a method, with memory in view, and PipeDream's own planner.

What a batch takes once the pipeline is full, from each module's forward f and backward b (a forward
that is run again belongs to b); the dynamic program takes the largest over neighbouring modules:

    order            seconds a batch
    1f1b             max over k of f(k) + b(k)
    gradient_first   max over k of f(k) + f(k+1) + b(k+1), and of f(k) + b(k)
    barrier          sum of all f, and the largest b
    seq              sum of all f and b, wherever the cuts are
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import pandas as pd

from alkit.delayed.methods import METHODS
from alkit.schedule.costs import BlockCost
from studies.delayed.memory import module_bytes

__all__ = [
    "Replicated",
    "best_cuts",
    "brute_force",
    "grids",
    "pipedream_plan",
    "seconds_a_batch",
]

FOREVER = float("inf")


def seconds_a_batch(method: str, costs: Sequence[BlockCost], cuts: Sequence[int]) -> float:
    """Return what a batch takes after fill, without transfers.

    Raises:
        ValueError: a method that flushes: simulate it.
    """
    return _Plan(method, costs, len(cuts) + 1).seconds(cuts)


def best_cuts(
    method: str,
    costs: Sequence[BlockCost],
    modules: int,
    *,
    bandwidth: float | None = None,
    memory: float | None = None,
    input_bytes: int = 0,
    states: int = 1,
) -> list[int]:
    """Return the cuts with which a method takes the shortest time a batch.

    Of equals, the cut that moves fewer bytes. Early modules hold most batches, so little memory
    pushes cuts to the front.

    Args:
        bandwidth: bytes a second between neighbours, each way, beside the computation.
        memory: bytes that a module may hold at its peak, see `studies.delayed.memory`.
        input_bytes: of the batch, for methods that store inputs.
        states: tensors that the optimiser keeps a parameter.
    Raises:
        ValueError: more modules than blocks, or nothing that fits into `memory`.
    """
    n = len(costs)
    if not 1 <= modules <= n:
        raise ValueError(f"{modules} modules for {n} blocks: give 1 to {n}")
    plan = _Plan(method, costs, modules, bandwidth, memory, input_bytes, states)

    @cache
    def best(stage: int, before: int | None, low: int) -> tuple[float, int, tuple[int, ...]]:
        """Return (seconds, bytes moved, cuts) of modules `stage` on, the first from `low`."""
        if stage == modules - 1:
            return plan.step(before, low, n, stage), 0, ()
        found = []
        for high in range(low + 1, n - (modules - stage - 1) + 1):
            own = plan.step(before, low, high, stage)
            rest, moved, cuts = best(stage + 1, low, high)
            moved += 2 * costs[high - 1].output_bytes
            found.append((max(own, rest), moved, (high, *cuts)))
        return min(found)

    seconds, _, cuts = best(0, None, 0)
    if seconds == FOREVER:
        raise ValueError(
            f"{method} with {modules} modules fits no cut into {memory:,.0f} bytes a module: give"
            " more memory or smaller batches, or a method that stores less, such as fr"
        )
    return list(cuts)


def brute_force(method: str, costs: Sequence[BlockCost], modules: int, **limits: Any) -> float:
    """Return the shortest time a batch over all cuts, one by one: the oracle for few blocks."""
    plan = _Plan(method, costs, modules, **limits)
    return min(map(plan.seconds, combinations(range(1, len(costs)), modules - 1)))


class _Plan:
    """Costs of groups of blocks under a method."""

    def __init__(
        self,
        method: str,
        costs: Sequence[BlockCost],
        modules: int,
        bandwidth: float | None = None,
        memory: float | None = None,
        input_bytes: int = 0,
        states: int = 1,
    ) -> None:
        chosen = METHODS[method]
        if chosen.accumulates:
            raise ValueError(f"{method} works in micro-batches: simulate it, or take pipedream")
        self.method, self.order, self.costs, self.modules = method, chosen.order, costs, modules
        self.again = chosen.backward in ("replay", "recompute")
        self.bandwidth, self.memory = bandwidth, memory
        self.input_bytes, self.states = input_bytes, states
        self.forward = _sums([cost.forward_s for cost in costs])
        self.rest = _sums([cost.backward_s + cost.update_s for cost in costs])
        # what no cut changes
        self.always = {
            "barrier": self.forward[-1],
            "seq": self.forward[-1] + self.rest[-1],
        }.get(self.order, 0.0)

    def seconds(self, cuts: Sequence[int]) -> float:
        """Return what a batch takes with these cuts."""
        bounds = [0, *cuts, len(self.costs)]
        modules = zip([None, *bounds], bounds, bounds[1:], strict=False)
        return self.always + max(self.step(*one, stage) for stage, one in enumerate(modules))

    def step(self, before: int | None, low: int, high: int, stage: int) -> float:
        """Return what module `stage`, blocks low .. high - 1, adds: a bound on the seconds.

        Args:
            before: the first block of the module before.
        """
        if self.memory is not None and self._bytes(low, high, stage) > self.memory:
            return FOREVER
        moved = 2 * self.costs[low - 1].output_bytes if low else 0
        link_s = moved / self.bandwidth if self.bandwidth else 0.0
        return max(link_s, self._busy_s(before, low, high, stage))

    def _busy_s(self, before: int | None, low: int, high: int, stage: int) -> float:
        f = self.forward[high] - self.forward[low]
        b = self.rest[high] - self.rest[low]
        if self.again and stage < self.modules - 1:
            b += f
        if self.order == "seq":
            return 0.0
        if self.order == "barrier":
            return b
        if self.order == "gradient_first" and before is not None:
            return self.forward[low] - self.forward[before] + f + b
        return f + b

    def _bytes(self, low: int, high: int, stage: int) -> int:
        given = self.costs[low - 1].output_bytes if low else self.input_bytes
        held = module_bytes(
            self.method, self.costs[low:high], given, stage, self.modules, states=self.states
        )
        return held["total"]


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
    seconds = _sums([cost.seconds for cost in costs])
    weights = _sums([cost.parameter_bytes for cost in costs])

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


def _sums(values: Sequence[float]) -> list[float]:
    total = [0.0]
    for value in values:
        total.append(total[-1] + value)
    return total
