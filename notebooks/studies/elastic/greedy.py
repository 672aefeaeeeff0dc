"""The published rule that cuts units into stages, bit-compatible with the published code."""

from collections.abc import Sequence
from statistics import pvariance

from alkit.elastic.layout import minmax


def greedy(sizes: Sequence[float], stages: int) -> list[int]:
    """Return the counts of units of each stage, by the published rule.

    Each stage takes units in order while its load stays below mean + variance of what is left; the
    sum of a size and a square of sizes makes the rule depend on the unit of measure.

    Args:
        sizes: of the active units, in order; millions of parameters as published.
    Returns:
        Counts, which may be 0: this is the rule as it is.
    """
    counts: list[int] = []
    assigned, total = 0, sum(sizes)
    for k in range(stages):
        rest = list(sizes[assigned:])
        mean = total / (stages - k)
        variance = pvariance(rest) / (stages - k) if rest else 0.0
        load, own = 0.0, 0
        while own < len(rest) and (k == stages - 1 or load + rest[own] < mean + variance):
            load += rest[own]
            total -= rest[own]
            own += 1
        counts.append(own)
        assigned += own
    return counts


def filled(sizes: Sequence[float], stages: int) -> list[int]:
    """Cut by the published rule, but never into empty stages, which it can leave."""
    counts = greedy(sizes, stages)
    return counts if all(counts) else minmax(sizes, stages)
