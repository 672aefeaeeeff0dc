"""Cut a chain of blocks into neighbouring groups of balanced cost."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from alkit.schedule.costs import BlockCost

__all__ = ["balanced_cuts", "straight_cuts"]

Value = TypeVar("Value", float, tuple[int, int])
ADAM = 4  # parameters, gradients and two moments


def balanced_cuts(costs: Sequence[float], groups: int) -> list[int]:
    """Return the cuts that make the dearest of `groups` neighbouring groups as cheap as can be.

    Args:
        costs: one cost a block, not negative.
    Returns:
        The first block of every group but the first; groups are never empty.
    Raises:
        ValueError: more groups than blocks, or none.
    """
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    cuts = _best(len(costs), groups, lambda i, j: total[j] - total[i], max)
    assert cuts is not None  # every cut is allowed
    return cuts


def straight_cuts(
    costs: Sequence[BlockCost],
    groups: int,
    *,
    bandwidth: float | None = None,
    memory: float | None = None,
    there_and_back: bool = False,
) -> list[int]:
    """Return the cuts of a straight pipeline with the shortest step.

    A step takes as long as its slowest worker or link. Of the cuts that reach the shortest step,
    those that move the fewest bytes are taken, and of these the ones with the smallest peak of
    memory.

    Args:
        bandwidth: bytes a second between neighbours, beside the computation; None for no limit.
        memory: bytes that a worker has; None for no limit. A worker keeps parameters, gradients,
            Adam's moments, and what its blocks save for the backward.
        there_and_back: backprop sends a gradient back over every cut.
    Returns:
        The first block of every group but the first.
    Raises:
        ValueError: more groups than blocks, or no cut that fits into `memory`.
    """
    n, ways = len(costs), 2 if there_and_back else 1
    seconds = [sum(cost.seconds for cost in costs[:j]) for j in range(n + 1)]
    kept = [sum(ADAM * c.parameter_bytes + c.saved_bytes for c in costs[:j]) for j in range(n + 1)]

    def moved(i: int) -> int:
        return ways * costs[i - 1].output_bytes if i else 0

    def step(i: int, j: int) -> float:
        if memory is not None and kept[j] - kept[i] > memory:
            return float("inf")
        link_s = moved(i) / bandwidth if bandwidth else 0.0
        return max(seconds[j] - seconds[i], link_s)

    fastest = _best(n, groups, step, max)
    shortest = float("inf") if fastest is None else max(_each(step, fastest, n))
    if shortest == float("inf"):
        raise ValueError(
            f"no cut of {n} blocks into {groups} groups fits into {memory:,.0f} bytes a worker:"
            f" all together need {kept[-1]:,}; give more workers or smaller batches"
        )

    def bytes_and_peak(i: int, j: int) -> tuple[int, int] | None:
        slow = step(i, j) > shortest * (1 + 1e-9)
        return None if slow else (moved(i), kept[j] - kept[i])

    cuts = _best(n, groups, bytes_and_peak, lambda a, b: (a[0] + b[0], max(a[1], b[1])))
    assert cuts is not None  # `fastest` is one
    return cuts


def _best(
    n: int,
    groups: int,
    value: Callable[[int, int], Value | None],
    combine: Callable[[Value, Value], Value],
) -> list[int] | None:
    """Return the cuts with the least combined value; None if no cut is allowed.

    Dynamic program: best[k][j] = min over i of combine(best[k-1][i], value(i, j)).

    Args:
        value: of the group of blocks i .. j - 1; None if it is not allowed.
    """
    if not 1 <= groups <= n:
        raise ValueError(f"{groups} groups for {n} blocks: give 1 to {n}")
    best = [value(0, j) if j else None for j in range(n + 1)]
    choice: list[list[int]] = []
    for k in range(2, groups + 1):
        row: list[Value | None] = [None] * (n + 1)
        cuts = [0] * (n + 1)
        for j in range(k, n + 1):
            for i in range(k - 1, j):
                before, own, least = best[i], value(i, j), row[j]
                if before is None or own is None:
                    continue
                found = combine(before, own)
                if least is None or found < least:
                    row[j], cuts[j] = found, i
        best = row
        choice.append(cuts)
    if best[n] is None:
        return None
    cuts, end = [], n
    for row_cuts in reversed(choice):
        end = row_cuts[end]
        cuts.append(end)
    return cuts[::-1]


def _each(value: Callable[[int, int], float], cuts: Sequence[int], n: int) -> list[float]:
    bounds = [0, *cuts, n]
    return [value(i, j) for i, j in zip(bounds, bounds[1:], strict=False)]
