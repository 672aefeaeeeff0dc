"""Which is faster here: two ways to take a step, run in turn."""

import statistics
import time
from collections.abc import Callable

ROUNDS = 7


def raced(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """Return the median seconds of each; the first round, which sets libraries up, is left out."""
    rounds = [(_seconds(first), _seconds(second)) for _ in range(ROUNDS + 1)]
    one, other = zip(*rounds[1:], strict=True)
    return statistics.median(one), statistics.median(other)


def _seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
