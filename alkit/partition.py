"""Cut a chain of blocks into neighbouring groups of balanced cost."""

from collections.abc import Sequence

__all__ = ["balanced_cuts"]


def balanced_cuts(costs: Sequence[float], groups: int) -> list[int]:
    """Return the cuts that make the dearest of `groups` neighbouring groups as cheap as can be.

    Dynamic program: best[k][j] = min over i of max(best[k-1][i], costs[i:j]).

    Args:
        costs: one cost a block, not negative.
    Returns:
        The first block of every group but the first; groups are never empty.
    Raises:
        ValueError: more groups than blocks, or none.
    """
    n = len(costs)
    if not 1 <= groups <= n:
        raise ValueError(f"{groups} groups for {n} blocks: give 1 to {n}")
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    best = [total[j] for j in range(n + 1)]
    choice: list[list[int]] = []
    for k in range(2, groups + 1):
        row, cuts = [float("inf")] * (n + 1), [0] * (n + 1)
        for j in range(k, n + 1):
            cuts[j] = min(range(k - 1, j), key=lambda i: max(best[i], total[j] - total[i]))
            row[j] = max(best[cuts[j]], total[j] - total[cuts[j]])
        best = row
        choice.append(cuts)
    cuts, end = [], n
    for row_cuts in reversed(choice):
        end = row_cuts[end]
        cuts.append(end)
    return cuts[::-1]
