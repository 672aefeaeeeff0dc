"""Where to cut the active units into stages, and when they fit into half as many.

    units    embedding | attention 0 | mlp 0 | attention 1 | mlp 1 | ... | norm | head
    stages   [ 0            0            0   ][ 1             1     ...    1       1  ]

Two ways to cut: `greedy`, bit-compatible with the published code, and `minmax`, which makes the
largest stage as small as can be. Sizes are of any unit: parameters, seconds, bytes.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import pvariance

from alkit.engine.costs import balanced_cuts

FROZEN_COST = 1 / 6  # memory of a frozen layer over that of an active one, as published

Partitioner = Callable[[Sequence[float], int], list[int]]


def greedy(sizes: Sequence[float], stages: int, frozen: float = 0.0) -> list[int]:
    """Return the counts of units of each stage, by the published rule.

    Each stage takes units in order while its load stays below mean + variance of what is left; the
    sum of a size and a square of sizes makes the rule depend on the unit of measure.

    Args:
        sizes: of the active units, in order; millions of parameters as published.
        frozen: size of the frozen prefix, which lies on stage 0.
    Returns:
        Counts, which may be 0: this is the rule as it is.
    """
    counts: list[int] = []
    assigned, total = 0, sum(sizes)
    for k in range(stages):
        rest = list(sizes[assigned:])
        mean = total / (stages - k)
        variance = pvariance(rest) / (stages - k) if rest else 0.0
        load, own = FROZEN_COST * frozen if k == 0 else 0.0, 0
        while own < len(rest) and (k == stages - 1 or load + rest[own] < mean + variance):
            load += rest[own]
            total -= rest[own]
            own += 1
        counts.append(own)
        assigned += own
    return counts


def minmax(sizes: Sequence[float], stages: int) -> list[int]:
    """Return the counts of units of each stage that make the largest stage smallest.

    Raises:
        ValueError: more stages than units.
    """
    bounds = [0, *balanced_cuts(sizes, stages), len(sizes)]
    return [high - low for low, high in pairwise(bounds)]


def loads(sizes: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the size of every stage."""
    found, at = [], 0
    for count in counts:
        found.append(sum(sizes[at : at + count]))
        at += count
    return found


def compress(
    sizes: Sequence[float],
    stages: int,
    budget: float,
    partition: Partitioner = minmax,
    frozen: float = 0.0,
) -> int:
    """Return the number of stages after halving as often as the largest stage fits into `budget`.

    Args:
        sizes: of the active units.
        budget: what a device holds; as published, the largest stage before anything was frozen.
        frozen: size of the frozen prefix, a part of which stage 0 has to hold.
    """
    while stages >= 2:
        found = loads(sizes, partition(sizes, stages // 2))
        found[0] += FROZEN_COST * frozen
        if max(found) > budget * (1 + 1e-12):
            break
        stages //= 2
    return stages
