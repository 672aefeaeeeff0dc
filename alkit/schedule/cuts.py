"""Cut a chain of blocks into neighbouring groups of balanced cost."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

Value = TypeVar("Value", float, tuple[int, int])


def balanced_cuts(costs: Sequence[float], groups: int) -> list[int]:
    """Return the cuts that make the dearest of `groups` neighbouring groups as cheap as can be.

    Args:
        costs: one cost a block, not negative.
    Returns:
        The first block of every group but the first; groups are never empty.
    Raises:
        ValueError: more groups than blocks, or none.
    """
    total = list(accumulate(costs, initial=0.0))
    cuts = cheapest(len(costs), groups, lambda i, j: total[j] - total[i], max)
    assert cuts is not None  # every cut is allowed
    return cuts


def cheapest(
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
