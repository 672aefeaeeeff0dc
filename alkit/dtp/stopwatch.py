"""How long each kind of work takes on this process, and the timeline of its first steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from alkit.schedule.timeline import Interval, Timeline

__all__ = ["Stopwatch"]

SHOWN = 4  # steps whose timeline is kept


class Stopwatch:
    """Seconds by kind and block.

    Attributes:
        seconds: by (kind, block), of all steps.
    """

    def __init__(self, rank: int) -> None:
        self.worker = f"worker {rank}"
        self.seconds: dict[tuple[str, int], float] = {}
        self._intervals: list[Interval] = []
        self._first: int | None = None
        self._zero_s = 0.0

    def start(self) -> None:
        """Let the timeline begin now."""
        self._zero_s = time.perf_counter()

    @contextmanager
    def timed(self, kind: str, block: int, step: int) -> Iterator[None]:
        """Time what is done within."""
        start_s = time.perf_counter()
        yield
        end_s = time.perf_counter()
        self.seconds[kind, block] = self.seconds.get((kind, block), 0.0) + end_s - start_s
        self._first = step if self._first is None else self._first
        if step < self._first + SHOWN:
            times = start_s - self._zero_s, end_s - self._zero_s
            self._intervals.append(Interval(self.worker, kind, block, step, 0, *times))

    def total(self, kind: str) -> float:
        """Return the seconds of a kind, over all blocks."""
        return sum(seconds for (own, _), seconds in self.seconds.items() if own == kind)

    def timeline(self) -> Timeline:
        """Return the intervals of the first steps."""
        return Timeline(tuple(self._intervals), (self.worker,))
