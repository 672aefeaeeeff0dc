"""Where to cut: the fastest modules for a method, under a bound on memory.

What a batch takes once the pipeline is full, from each module's forward f and backward b (a forward
that is run again belongs to b); the dynamic program takes the largest over neighbouring modules:

    order            seconds per batch
    1f1b             max over k of f(k) + b(k)
    gradient_first   max over k of f(k) + f(k+1) + b(k+1), and of f(k) + b(k)
    barrier          sum of all f, and the largest b
    seq              sum of all f and b, wherever the cuts are
    flushed          the slowest module sets the pace, as in 1f1b; fill and drain come to it
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from alkit.delayed.memory import module_bytes
from alkit.delayed.methods import METHODS
from alkit.schedule.costs import BlockCost

FOREVER = float("inf")


def seconds_a_batch(method: str, costs: Sequence[BlockCost], cuts: Sequence[int]) -> float:
    """Return what a batch takes after fill, without transfers.

    Raises:
        ValueError: a method that flushes: simulate it.
    """
    if METHODS[method].accumulates:
        raise ValueError(f"{method} works in micro-batches: simulate it, or take pipedream")
    return GroupCosts(method, costs, len(cuts) + 1).seconds(cuts)


def best_cuts(method: str, costs: Sequence[BlockCost], modules: int, **limits: Any) -> list[int]:
    """Return the cuts with which a method takes the shortest time a batch.

    Of equals, the cut that moves fewer bytes. Early modules hold most batches, so little memory
    pushes cuts to the front.

    Args:
        limits: bandwidth, memory and the others of `GroupCosts`.
    Raises:
        ValueError: more modules than blocks, or nothing that fits into `memory`.
    """
    n = len(costs)
    if not 1 <= modules <= n:
        raise ValueError(f"{modules} modules for {n} blocks: give 1 to {n}")
    plan = GroupCosts(method, costs, modules, **limits)

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
            f"{method} with {modules} modules fits no cut into {plan.memory:,.0f} bytes per module:"
            " give more memory or smaller batches, or a method that stores less, such as fr"
        )
    return list(cuts)


@dataclass
class GroupCosts:
    """Costs of groups of blocks under a method.

    Attributes:
        bandwidth: bytes per second between neighbours, each way, beside the computation.
        memory: bytes that a module may hold at its peak, see `alkit.delayed.memory`.
        input_bytes: of the batch, for methods that store inputs.
        states: tensors that the optimiser keeps a parameter.
        micro: micro-batches per batch.
        recompute: micro-batches run again, where several are in flight.
    """

    method: str
    costs: Sequence[BlockCost]
    modules: int
    bandwidth: float | None = None
    memory: float | None = None
    input_bytes: int = 0
    states: int = 1
    micro: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        chosen = METHODS[self.method]
        self.order = chosen.order
        self.again = self.recompute or chosen.backward in ("replay", "recompute")
        self.forward = _sums(cost.forward_s for cost in self.costs)
        self.rest = _sums(cost.backward_s + cost.update_s for cost in self.costs)
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
            self.method,
            self.costs[low:high],
            given,
            stage,
            self.modules,
            micro=self.micro,
            states=self.states,
            recompute=self.recompute,
        )
        return held["total"]


def _sums(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
