"""Which process runs which feedback loop, known to all ranks without a word."""

from collections.abc import Sequence

from alkit.dtp.feedback import BlockFeedback


def assigned(feedback: BlockFeedback, owners: Sequence[int] | None, ranks: int) -> list[int]:
    """Return each loop's rank: the longest first, always to the one with the least to do.

    A loop is as long as its iterations times its weights.

    Args:
        owners: ranks that are given instead.
    Raises:
        ValueError: owners that don't fit; says what is wanted.
    """
    loops = feedback.loops
    if owners is not None:
        if len(owners) != len(loops) or not set(owners) <= set(range(ranks)):
            names = ", ".join(feedback.net.label(n) for n in loops)
            raise ValueError(
                f"owners is {owners}: give the rank, 0 to {ranks - 1}, of each of {len(loops)}"
                f" loops ({names})"
            )
        return list(owners)
    weights = {n: sum(each.numel() for each in feedback.parameters(n)) for n in loops}
    loads = {n: feedback.iterations(n) * weights[n] for n in loops}
    found, busy = dict.fromkeys(loops, 0), [0] * ranks
    for n in sorted(loops, key=lambda n: -loads[n]):
        found[n] = busy.index(min(busy))
        busy[found[n]] += loads[n]
    return list(found.values())
