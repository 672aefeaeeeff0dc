"""Run a schedule in virtual time: only durations are needed, no tensors and no hardware.

A task may start when its worker is free and all that it waits for has ended; then it waits for a
free core. Free workers take the most urgent task of all lanes:

1   begun tasks         backwards and updates before forwards: no more layers hold activations
                        than there are workers
2   most work left      batches that are known and not finished * seconds of a batch
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import islice

from alkit.schedule.task import Place, Schedule, Task, check_positive
from alkit.schedule.timeline import Interval, Timeline

Durations = Mapping[tuple[str, int], float] | Callable[[Task], float]
FEED_AHEAD = 2  # batches that the loader may be ahead of the first stage: they are known
SMOOTHING = 0.3  # weight of a newer duration
UNKNOWN_S = 1.0  # of a task that has not run yet; more than most take, so lanes are tried early


class WorkLeft:
    """The work that lanes have left, from durations that are noted while a schedule runs."""

    def __init__(self, schedule: Schedule) -> None:
        self.seconds: dict[Place, float] = dict.fromkeys(schedule.places, 0.0)
        self.lane_s = [UNKNOWN_S * len(schedule.one_batch(i)) for i in range(schedule.lanes)]

    def note(self, lane: int, task: Task, seconds: float) -> None:
        """Take account of how long a task took."""
        before = self.seconds[task.place]
        after = before + SMOOTHING * (seconds - before) if before else seconds
        self.seconds[task.place] = after
        self.lane_s[lane] += after - (before or UNKNOWN_S)

    def urgency(self, lane: int, task: Task, batches: int) -> tuple[bool, float]:
        """Return how urgent the next task of a lane is, if `batches` are known: more is sooner."""
        return task.kind != "forward", self.lane_s[lane] * (batches - task.batch)


def simulate(
    schedule: Schedule, durations: Durations, batches: int, cores: int | None = None
) -> Timeline:
    """Return the timeline of `batches` batches in virtual time.

    Durations are seconds by (kind, stage), or a function of the task; `cores` tasks, by default one
    a worker, may run at the same time.
    """
    check_positive(batches=batches, cores=schedule.workers if cores is None else cores)
    seconds = durations if callable(durations) else lambda task: durations[task[:2]]
    return _Clock(schedule, seconds, batches, cores or schedule.workers).run()


class _Clock:
    """One simulation: time goes on from the end of one task to the end of the next."""

    def __init__(
        self, schedule: Schedule, seconds: Callable[[Task], float], batches: int, cores: int
    ) -> None:
        self.schedule, self.seconds, self.batches = schedule, seconds, batches
        self.orders = [schedule.order(lane, range(batches)) for lane in range(schedule.lanes)]
        self.most = min(cores, schedule.workers)  # tasks that may run at a time
        self.idle = list(range(schedule.workers))
        self.work_left, self.known = WorkLeft(schedule), min(FEED_AHEAD, batches)
        self.running: list[tuple[float, int, int, Task]] = []  # end, number, worker
        self.ended: set[Task] = set()
        self.waiting: dict[Task, list[tuple[int, Task]]] = {}  # with their lanes
        self.ready: list[tuple[int, Task]] = []  # tasks that only wait for their turn
        self.intervals: list[Interval] = []

    def run(self) -> Timeline:
        self._look(range(self.schedule.lanes))
        self._start(0.0)
        while self.running:
            now = self.running[0][0]
            while self.running and self.running[0][0] == now:
                self._finish(*heappop(self.running))
            self._start(now)
        if self.waiting:
            raise ValueError(f"{self.schedule.name} deadlocks: see alkit.schedule.validate")
        workers = (f"worker {worker}" for worker in range(self.schedule.workers))
        return Timeline.of(self.intervals, workers, "virtual")

    def _look(self, lanes: Iterable[int], waiting: Iterable[tuple[int, Task]] = ()) -> None:
        """Note which next tasks may start; the others wait for the first hindrance."""
        taken = [(lane, task) for lane in lanes for task in islice(self.orders[lane], 1)]
        for lane, task in sorted([*waiting, *taken]):
            waits = (other for other in self.schedule.waits(task) if other.batch < self.batches)
            hindrance = next((other for other in waits if other not in self.ended), None)
            if hindrance is None:
                self.ready.append((lane, task))
            else:
                self.waiting.setdefault(hindrance, []).append((lane, task))

    def _start(self, now: float) -> None:
        """Let ready tasks run while there are cores; free workers take the most urgent first."""
        if self.schedule.free:
            urgency = self.work_left.urgency
            self.ready.sort(key=lambda one: urgency(one[0], one[1], self.known), reverse=True)
        while self.ready and len(self.running) < self.most:
            lane, task = self.ready.pop(0)
            worker = self.idle.pop(0) if self.schedule.free else lane
            end = now + self.seconds(task)
            self.intervals.append(Interval(f"worker {worker}", *task, now, end))
            heappush(self.running, (end, len(self.intervals), worker, task))

    def _finish(self, now: float, number: int, worker: int, task: Task) -> None:
        lane = self.schedule.lane(task)
        self.ended.add(task)
        self.idle.append(worker)
        self.work_left.note(lane, task, now - self.intervals[number - 1].start_s)
        if task.kind == "forward" and task.stage == 0:
            self.known = min(self.batches, task.batch + 1 + FEED_AHEAD)
        self._look([lane], self.waiting.pop(task, []))
