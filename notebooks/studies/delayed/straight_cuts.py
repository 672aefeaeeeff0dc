"""Cuts of a pipeline that goes straight, or there and back, under limits of memory and links."""

from collections.abc import Callable, Sequence

from alkit.schedule.costs import BlockCost
from alkit.schedule.cuts import cheapest

ADAM = 4  # parameters, gradients and two moments


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
        bandwidth: bytes per second between neighbours, beside the computation; None for no limit.
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

    fastest = cheapest(n, groups, step, max)
    shortest = float("inf") if fastest is None else max(_each(step, fastest, n))
    if shortest == float("inf"):
        raise ValueError(
            f"no cut of {n} blocks into {groups} groups fits into {memory:,.0f} bytes per worker:"
            f" all together need {kept[-1]:,}; give more workers or smaller batches"
        )

    def bytes_and_peak(i: int, j: int) -> tuple[int, int] | None:
        slow = step(i, j) > shortest * (1 + 1e-9)
        return None if slow else (moved(i), kept[j] - kept[i])

    cuts = cheapest(n, groups, bytes_and_peak, lambda a, b: (a[0] + b[0], max(a[1], b[1])))
    assert cuts is not None  # `fastest` is one
    return cuts


def _each(value: Callable[[int, int], float], cuts: Sequence[int], n: int) -> list[float]:
    bounds = [0, *cuts, n]
    return [value(i, j) for i, j in zip(bounds, bounds[1:], strict=False)]
