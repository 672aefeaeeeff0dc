"""Cut a chain of blocks into neighbouring groups of balanced cost."""

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter


def balanced_cuts(costs: Sequence[float], groups: int) -> list[int]:
    """Return the cuts that make the dearest of `groups` neighbouring groups as cheap as can be.

    Returns:
        The first block of every group but the first; groups are never empty.
    """
    blocks = len(costs)
    if not 1 <= groups <= blocks:
        raise ValueError(f"{groups} groups for {blocks} blocks: give 1 to {blocks}")
    total = list(accumulate(costs, initial=0.0))
    # of the first blocks up to `end`: the cost of the dearest group, and the cuts
    best: dict[int, tuple[float, list[int]]] = {n: (total[n], []) for n in range(1, blocks + 1)}
    for group in range(1, groups):
        best = {
            end: min(
                (
                    (max(dearest, total[end] - total[cut]), [*cuts, cut])
                    for cut, (dearest, cuts) in best.items()
                    if cut < end
                ),
                key=itemgetter(0),
            )
            for end in range(group + 1, blocks + 1)
        }
    return best[blocks][1]
