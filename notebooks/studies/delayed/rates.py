"""Learning rates as factors by the number of the batch that is applied; all methods share them."""

from collections.abc import Callable, Sequence

Rate = Callable[[int], float]


def multistep(milestones: Sequence[int], factor: float = 0.1, warmup: int = 0) -> Rate:
    """Return 1, times `factor` from each milestone on; before `warmup` it rises from 0.

    Args:
        milestones: numbers of batches.
    """

    def rate(batch: int) -> float:
        rising = min(1.0, (batch + 1) / warmup) if warmup else 1.0
        return rising * factor ** sum(batch >= milestone for milestone in milestones)

    return rate


def linear(batches: int, warmup: float = 0.1) -> Rate:
    """Return a factor that rises over the first `warmup` share and falls to 0, as in BERT."""
    top = max(1, round(warmup * batches))

    def rate(batch: int) -> float:
        if batch < top:
            return (batch + 1) / top
        return max(0.0, (batches - batch) / max(1, batches - top))

    return rate
