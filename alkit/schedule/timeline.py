"""Intervals of tasks, measured or simulated, and the figures that come from them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import sub
from statistics import median
from typing import NamedTuple

from alkit.base.arguments import Brief


class Interval(NamedTuple):
    """One task as it ran: times in seconds from the start of the run."""

    resource: str
    kind: str
    stage: int
    batch: int
    micro: int
    start_s: float
    end_s: float
    bytes: int = 0


@dataclass(frozen=True, repr=False)
class Timeline(Brief):
    """The intervals of a run, by the clock of the host: on an accelerator of launches.

    `torch.profiler` says when the launched operators run.
    """

    intervals: tuple[Interval, ...]  # by resource, then by start
    resources: tuple[str, ...]  # all of them, also one that had nothing to do
    clock: str = "host"  # or "virtual"

    @staticmethod
    def of(
        intervals: Iterable[Interval], resources: Iterable[str], clock: str = "host"
    ) -> "Timeline":
        """Sort the intervals and let time begin at the first of them."""
        resources = tuple(resources)
        place = {name: at for at, name in enumerate(resources)}
        intervals = sorted(intervals, key=lambda i: (place[i.resource], i.start_s))
        zero = min((i.start_s for i in intervals), default=0.0)
        moved = (i._replace(start_s=i.start_s - zero, end_s=i.end_s - zero) for i in intervals)
        return Timeline(tuple(moved), resources, clock)

    @staticmethod
    def joined(parts: "Sequence[Timeline]") -> "Timeline":
        """Put the timelines of consecutive runs end to end, batches numbered on."""
        intervals, batches, now = [], 0, 0.0
        for part in parts:
            for i in part.intervals:
                moved = i._replace(start_s=i.start_s + now, end_s=i.end_s + now)
                intervals.append(moved._replace(batch=i.batch + batches))
            batches, now = batches + len(part.batch_ends_s), now + part.span_s
        resources = dict.fromkeys(name for part in parts for name in part.resources)
        return Timeline.of(intervals, resources, parts[0].clock if parts else "host")

    @cached_property
    def span_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max((i.end_s for i in self.intervals), default=0.0)

    def busy_s(self, resource: str) -> float:
        """Seconds that a resource worked."""
        return sum(i.end_s - i.start_s for i in self.intervals if i.resource == resource)

    def idle_share(self, resource: str) -> float:
        """Share of the span that a resource waited, 0 to 1."""
        return 1 - self.busy_s(resource) / self.span_s if self.span_s else 0.0

    @cached_property
    def bubble(self) -> float:
        """Share of all resources' time that is idle, fill and drain included, 0 to 1."""
        return sum(map(self.idle_share, self.resources)) / max(1, len(self.resources))

    @cached_property
    def batch_ends_s(self) -> tuple[float, ...]:
        """For each batch, in order, the end of its last task."""
        return _batch_ends_s(self.intervals)

    @cached_property
    def step_s(self) -> float:
        """Median seconds from the end of a batch to the end of the next: fill is not counted."""
        ends = self.batch_ends_s
        return median(map(sub, ends[1:], ends)) if ends[1:] else self.span_s

    @cached_property
    def steady_s(self) -> float:
        """Mean seconds per batch, once a quarter of them has ended: neither fill nor start-up.

        The slowest stage sets it: others run ahead while queues fill, and catch up at the end.
        """
        if len(self.batch_ends_s) < 3:
            return self.span_s / max(1, len(self.batch_ends_s))
        stages = {i.stage for i in self.intervals}
        ends_s = [_batch_ends_s(i for i in self.intervals if i.stage == stage) for stage in stages]
        late = (ends[len(ends) // 4 :] for ends in ends_s)
        return max((ends[-1] - ends[0]) / max(1, len(ends) - 1) for ends in late)

    def task_s(self) -> dict[tuple[str, int], float]:
        """Median seconds of each (kind, stage)."""
        seconds: dict[tuple[str, int], list[float]] = {}
        for i in self.intervals:
            seconds.setdefault((i.kind, i.stage), []).append(i.end_s - i.start_s)
        return {key: median(values) for key, values in seconds.items()}

    def between(self, first: int, last: int) -> "Timeline":
        """Return the part with the batches `first` to `last`, the latter included, from time 0."""
        kept = (i for i in self.intervals if first <= i.batch <= last)
        return Timeline.of(kept, self.resources, self.clock)


def _batch_ends_s(intervals: Iterable[Interval]) -> tuple[float, ...]:
    ends: dict[int, float] = {}
    for i in intervals:
        ends[i.batch] = max(ends.get(i.batch, 0.0), i.end_s)
    return tuple(ends[batch] for batch in sorted(ends))
