"""Run a schedule in virtual time: only durations are needed, no tensors and no hardware.

Every worker takes its tasks in its order; a task starts when its worker is free and all that it
waits for has ended. With `cores`, at most so many tasks run at a time, first come first served: L
+ 1 threads on a two-core machine.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from alkit.schedule import Schedule, Task
from alkit.timeline import Interval, Timeline

__all__ = ["simulate"]

Durations = Mapping[tuple[str, int], float] | Callable[[Task], float]


def simulate(
    schedule: Schedule, durations: Durations, batches: int, cores: int | None = None
) -> Timeline:
    """Return the timeline of `batches` batches in virtual time.

    Args:
        durations: seconds by (kind, stage), or a function of the task.
        cores: tasks that may run at the same time; default as many as there are workers.
    Raises:
        ValueError: no batches, no cores, or a (kind, stage) without a duration.
    """
    if batches < 1 or (cores is not None and cores < 1):
        raise ValueError(f"batches is {batches} and cores is {cores}: both must be at least 1")
    return _Clock(schedule, _as_function(durations), batches, cores or schedule.workers).run()


def _as_function(durations: Durations) -> Callable[[Task], float]:
    if callable(durations):
        return durations

    def seconds(task: Task) -> float:
        if task[:2] not in durations:
            raise ValueError(f"no duration for {task.kind} of stage {task.stage}")
        return durations[task[:2]]

    return seconds


class _Clock:
    """The state of one simulation: an event queue over the ends of running tasks."""

    def __init__(
        self, schedule: Schedule, seconds: Callable[[Task], float], batches: int, cores: int
    ) -> None:
        self.schedule, self.seconds, self.free_cores = schedule, seconds, cores
        self.orders: list[Iterator[Task]] = [
            schedule.order(worker, range(batches)) for worker in range(schedule.workers)
        ]
        self.next: list[Task | None] = [next(order, None) for order in self.orders]
        self.queue: deque[int] = deque()  # workers whose task may start, first come first served
        self.queued: set[int] = set()
        self.running: list[tuple[float, int]] = []
        self.done: set[Task] = set()
        self.intervals: list[Interval] = []

    def run(self) -> Timeline:
        now = 0.0
        while True:
            self._queue_ready()
            self._start(now)
            if not self.running:
                break
            now, worker = heapq.heappop(self.running)
            self._finish(worker)
        if any(task is not None for task in self.next):
            raise ValueError(f"{self.schedule.name} deadlocks: see alkit.validate.validate")
        return Timeline.of(self.intervals, map(_name, range(self.schedule.workers)))

    def _queue_ready(self) -> None:
        for worker, task in enumerate(self.next):
            if task is None or worker in self.queued:
                continue
            if all(other in self.done for other in self.schedule.waits(task)):
                self.queued.add(worker)
                self.queue.append(worker)

    def _start(self, now: float) -> None:
        while self.queue and self.free_cores:
            worker = self.queue.popleft()
            task = self.next[worker]
            end = now + self.seconds(task)
            self.free_cores -= 1
            self.intervals.append(Interval(_name(worker), *task, now, end))
            heapq.heappush(self.running, (end, worker))

    def _finish(self, worker: int) -> None:
        self.done.add(self.next[worker])
        self.next[worker] = next(self.orders[worker], None)
        self.queued.discard(worker)
        self.free_cores += 1


def _name(worker: int) -> str:
    return f"worker {worker}"
