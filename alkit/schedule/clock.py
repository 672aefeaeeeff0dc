"""Run a schedule in virtual time: only durations are needed, no tensors and no hardware.

Every worker takes its tasks in its order; a task starts when its worker is free and all that it
waits for has ended. With `cores`, at most so many tasks run at a time, first come first served: L
+ 1 threads on a two-core machine. With `link_s`, what a stage hands to one on another worker takes
time, one transfer after the other on the link between the two, beside their work:

    worker 0   F0 B0 U0 F0 B0 U0
    link 0-1     s0       s0
    worker 1        F1 B1 U1 F1 ...
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from alkit.schedule.task import Edge, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline

__all__ = ["simulate"]

Durations = Mapping[tuple[str, int], float] | Callable[[Task], float]


def simulate(
    schedule: Schedule,
    durations: Durations,
    batches: int,
    cores: int | None = None,
    link_s: Callable[[Task], float] | None = None,
) -> Timeline:
    """Return the timeline of `batches` batches in virtual time.

    Args:
        durations: seconds by (kind, stage), or a function of the task.
        cores: tasks that may run at the same time; default as many as there are workers.
        link_s: seconds that the output of a task takes to another worker; default none.
    Raises:
        ValueError: no batches, no cores, or a (kind, stage) without a duration.
    """
    if batches < 1 or (cores is not None and cores < 1):
        raise ValueError(f"batches is {batches} and cores is {cores}: both must be at least 1")
    seconds = _as_function(durations)
    return _Clock(schedule, seconds, batches, cores or schedule.workers, link_s).run()


def _as_function(durations: Durations) -> Callable[[Task], float]:
    if callable(durations):
        return durations

    def seconds(task: Task) -> float:
        if task[:2] not in durations:
            raise ValueError(f"no duration for {task.kind} of stage {task.stage}")
        return durations[task[:2]]

    return seconds


class _Clock:
    """The state of one simulation: an event queue over the ends of tasks and of transfers."""

    def __init__(
        self,
        schedule: Schedule,
        seconds: Callable[[Task], float],
        batches: int,
        cores: int,
        link_s: Callable[[Task], float] | None,
    ) -> None:
        self.schedule, self.seconds, self.free_cores = schedule, seconds, cores
        self.batches, self.link_s = batches, link_s
        self.orders: list[Iterator[Task]] = [
            schedule.order(worker, range(batches)) for worker in range(schedule.workers)
        ]
        self.next: list[Task | None] = [next(order, None) for order in self.orders]
        self.queue: deque[int] = deque()  # workers whose task may start, first come first served
        # a task, and whether its arrival at another worker is meant or its end
        self.happened: set[tuple[Task, bool]] = set()
        self.waiting: dict[tuple[Task, bool], list[int]] = {}  # each worker at most once
        # (end, number, worker, None) of a running task; (end, number, receiver, task) of a transfer
        self.events: list[tuple[float, int, int, Task | None]] = []
        self.count = itertools.count()
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.intervals: list[Interval] = []

    def run(self) -> Timeline:
        now = 0.0
        self._look(range(self.schedule.workers))
        while True:
            self._start(now)
            if not self.events:
                break
            now, _, worker, sent = heapq.heappop(self.events)
            if sent is None:
                self._finish(worker, now)
            else:
                self._look(self._happen(sent, arrived=True))
        if any(task is not None for task in self.next):
            raise ValueError(f"{self.schedule.name} deadlocks: see alkit.schedule.validate")
        links = [_link(*pair) for pair in sorted(self.link_free_s)]
        return Timeline.of(self.intervals, [*map(_name, range(self.schedule.workers)), *links])

    def _look(self, workers: Iterable[int]) -> None:
        """Queue the workers whose next task may start; the others wait for the first hindrance."""
        for worker in sorted(workers):
            task = self.next[worker]
            if task is None:
                continue
            edges = (e for e in self.schedule.edges(task) if 0 <= e.task.batch < self.batches)
            keys = ((edge.task, self._travels(edge, worker)) for edge in edges)
            hindrance = next((key for key in keys if key not in self.happened), None)
            if hindrance is None:
                self.queue.append(worker)
            else:
                self.waiting.setdefault(hindrance, []).append(worker)

    def _happen(self, task: Task, *, arrived: bool) -> list[int]:
        """Note it, and return the workers that waited for it."""
        self.happened.add((task, arrived))
        return self.waiting.pop((task, arrived), [])

    def _travels(self, edge: Edge, worker: int) -> bool:
        """Whether what comes along the edge takes a link to this worker."""
        far = edge.kind == "data" and self.schedule.owner(edge.task) != worker
        return self.link_s is not None and far

    def _start(self, now: float) -> None:
        while self.queue and self.free_cores:
            worker = self.queue.popleft()
            task = self.next[worker]
            assert task is not None  # who has no task is not in the queue
            end = now + self.seconds(task)
            self.free_cores -= 1
            self.intervals.append(Interval(_name(worker), *task, now, end))
            heapq.heappush(self.events, (end, next(self.count), worker, None))

    def _finish(self, worker: int, now: float) -> None:
        task = self.next[worker]
        assert task is not None  # it has just ended
        self.next[worker] = next(self.orders[worker], None)
        self.free_cores += 1
        self._look([worker, *self._happen(task, arrived=False)])
        takers = {self.schedule.owner(taker) for taker in self.schedule.takers(task)}
        if self.link_s is not None:
            for receiver in sorted(takers - {worker}):
                self._send(task, self.link_s(task), (worker, receiver), now)

    def _send(self, task: Task, takes_s: float, link: tuple[int, int], now: float) -> None:
        start = max(now, self.link_free_s.get(link, 0.0))
        self.link_free_s[link] = end = start + takes_s
        self.intervals.append(Interval(_link(*link), "send", *task[1:], start, end))
        heapq.heappush(self.events, (end, next(self.count), link[1], task))


def _name(worker: int) -> str:
    return f"worker {worker}"


def _link(sender: int, receiver: int) -> str:
    return f"link {sender}-{receiver}"
