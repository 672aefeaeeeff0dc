"""Run a schedule in virtual time: only durations are needed, no tensors and no hardware.

Every worker takes its tasks in its order. A task may start when its worker is free and all that it
waits for has ended; then it waits for one of so many cores. With `pace`, tasks that run at the same
time slow each other down. With `link_s`, what a stage hands to one on another worker takes time,
one transfer after the other on the link between the two, beside their work:

    worker 0   F0 B0 U0 F0 B0 U0
    link 0-1     s0       s0
    worker 1        F1 B1 U1 F1 ...

Free workers take the most urgent task of all lanes instead; they share memory, so they have no
links.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

from alkit.schedule.task import Edge, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.schedule.urgency import FEED_AHEAD, WorkLeft

Durations = Mapping[tuple[str, int], float] | Callable[[Task], float]
Pace = Callable[[int], float]
CORES = "cores"
MOMENT_S = 1e-12  # what ends within it ends at the same moment, where work goes on at other paces


def simulate(
    schedule: Schedule,
    durations: Durations,
    batches: int,
    cores: int | None = None,
    link_s: Callable[[Task], float] | None = None,
    pace: Pace | None = None,
) -> Timeline:
    """Return the timeline of `batches` batches in virtual time.

    Args:
        durations: seconds by (kind, stage), or a function of the task; of one that runs alone.
        cores: tasks that may run at the same time; default as many as there are workers.
        link_s: seconds that the output of a task takes to another worker; default none.
        pace: speed of each of so many tasks that run at the same time, 1 for one alone; default 1.
    Raises:
        ValueError: no batches, no cores, links between free workers, or a (kind, stage) without a
            duration.
    """
    if batches < 1 or (cores is not None and cores < 1):
        raise ValueError(f"batches is {batches} and cores is {cores}: both must be at least 1")
    if link_s is not None and schedule.free:
        raise ValueError("free workers share memory, so nothing travels between them: no link_s")
    line = _Line(cores or schedule.workers, pace)
    return _Clock(schedule, _as_function(durations), batches, line, link_s).run()


def _as_function(durations: Durations) -> Callable[[Task], float]:
    if callable(durations):
        return durations

    def seconds(task: Task) -> float:
        if task[:2] not in durations:
            raise ValueError(f"no duration for {task.kind} of stage {task.stage}")
        return durations[task[:2]]

    return seconds


class _Job:
    """A task, or the way of what it made to another worker, from when it stands in line."""

    def __init__(self, task: Task, worker: int, seconds: float, link: str | None = None) -> None:
        self.task, self.worker, self.link = task, worker, link
        self.left_s = seconds  # of work, at `since_s`
        self.since_s = self.start_s = self.end_s = math.inf  # the end is at the pace of now

    def interval(self, now: float) -> Interval:
        task = self.task if self.link is None else self.task._replace(kind="send")
        return Interval(self.link or f"worker {self.worker}", *task, self.start_s, now)


class _Line:
    """Who stands in line for cores, or for a link; the first ones run."""

    def __init__(self, places: int = 1, pace_of: Pace | None = None) -> None:
        self.places, self.pace_of = places, pace_of
        self.jobs, self.pace = list[_Job](), 1.0

    @property
    def running(self) -> list[_Job]:
        return self.jobs[: self.places]

    def go_on(self, now: float) -> None:
        """Start who has come to the front; all who run do so at the pace of their number."""
        running, before = self.running, self.pace
        self.pace = self.pace_of(len(running)) if self.pace_of and running else 1.0
        for job in running:
            if job.start_s > now:
                job.start_s = now
            elif self.pace == before:
                continue
            else:
                job.left_s -= (now - job.since_s) * before
            job.since_s, job.end_s = now, now + job.left_s / self.pace


class _Clock:
    """The state of one simulation: time goes on from the end of a job to the next one's."""

    def __init__(
        self,
        schedule: Schedule,
        seconds: Callable[[Task], float],
        batches: int,
        cores: _Line,
        link_s: Callable[[Task], float] | None,
    ) -> None:
        self.schedule, self.seconds, self.batches = schedule, seconds, batches
        self.link_s, self.moment_s = link_s, 0.0 if cores.pace_of is None else MOMENT_S
        self.orders = [schedule.order(lane, range(batches)) for lane in range(schedule.lanes)]
        self.idle = list(range(schedule.workers))  # free workers without a task
        self.work_left, self.known = WorkLeft(schedule), min(FEED_AHEAD, batches)
        # a task, and whether its arrival at another worker is meant or its end
        self.happened: set[tuple[Task, bool]] = set()
        self.waiting: dict[tuple[Task, bool], list[tuple[int, Task]]] = {}  # with their lanes
        self.ready: list[tuple[int, Task]] = []  # what waits for its turn only
        self.lines = {CORES: cores}
        self.links: set[tuple[int, int]] = set()
        self.intervals: list[Interval] = []

    def run(self) -> Timeline:
        lanes, now = range(self.schedule.lanes), 0.0
        self._look(taken for lane in lanes for taken in self._take(lane))
        while running := self._start(now):
            now = min(job.end_s for job in running)
            ended = [job for job in running if job.end_s <= now + self.moment_s]
            for job in sorted(ended, key=lambda job: job.end_s):
                self._finish(job, now)
        if self.waiting:
            raise ValueError(f"{self.schedule.name} deadlocks: see alkit.schedule.validate")
        links = [_link(*pair) for pair in sorted(self.links)]
        workers = (f"worker {worker}" for worker in range(self.schedule.workers))
        return Timeline.of(self.intervals, [*workers, *links], "virtual")

    def _take(self, lane: int) -> list[tuple[int, Task]]:
        """Return the next task of a lane, if there is one."""
        return [(lane, task) for task in itertools.islice(self.orders[lane], 1)]

    def _look(self, taken: Iterable[tuple[int, Task]]) -> None:
        """Note which tasks may start; the others wait for the first hindrance."""
        for lane, task in sorted(taken):
            edges = (e for e in self.schedule.edges(task) if 0 <= e.task.batch < self.batches)
            keys = ((edge.task, self._travels(edge, lane)) for edge in edges)
            hindrance = next((key for key in keys if key not in self.happened), None)
            if hindrance is None:
                self.ready.append((lane, task))
            else:
                self.waiting.setdefault(hindrance, []).append((lane, task))

    def _travels(self, edge: Edge, worker: int) -> bool:
        """Whether what comes along the edge takes a link to this worker."""
        far = edge.kind == "data" and self.schedule.owner(edge.task) != worker
        return self.link_s is not None and far

    def _start(self, now: float) -> list[_Job]:
        """Let what is ready stand in line, and return what runs now."""
        ready, self.ready = sorted(self.ready, key=self._turn), []
        for lane, task in ready:
            if self.schedule.free and not self.idle:
                self.ready.append((lane, task))
            else:
                worker = self.idle.pop(0) if self.schedule.free else lane
                self._line_up(_Job(task, worker, self.seconds(task)))
        for line in self.lines.values():
            line.go_on(now)
        return [job for line in self.lines.values() for job in line.running]

    def _turn(self, one: tuple[int, Task]) -> tuple[float, ...]:
        """The most urgent task first; workers with tasks of their own take turns as they come."""
        if not self.schedule.free:
            return ()
        begun, work_s = self.work_left.urgency(*one, self.known)
        return not begun, -work_s

    def _line_up(self, job: _Job) -> None:
        self.lines.setdefault(job.link or CORES, _Line()).jobs.append(job)

    def _finish(self, job: _Job, now: float) -> None:
        self.lines[job.link or CORES].jobs.remove(job)
        self.intervals.append(job.interval(now))
        arrived = job.task, job.link is not None
        self.happened.add(arrived)
        taken = self.waiting.pop(arrived, [])
        if job.link is None:
            taken += self._take(self.schedule.lane(job.task))
            self._note(job, now)
            self._send(job.task, job.worker)
        self._look(taken)

    def _note(self, job: _Job, now: float) -> None:
        """Free workers know how long tasks took, and which batches there are."""
        if not self.schedule.free:
            return
        self.idle.append(job.worker)
        self.work_left.note(self.schedule.lane(job.task), job.task, now - job.start_s)
        if job.task.kind == "forward" and job.task.stage == 0:
            self.known = min(self.batches, job.task.batch + 1 + FEED_AHEAD)

    def _send(self, task: Task, worker: int) -> None:
        """Let what a task has made travel to the other workers that take it."""
        if self.link_s is None:
            return
        takers = {self.schedule.owner(taker) for taker in self.schedule.takers(task)}
        for receiver in sorted(owner for owner in takers if owner not in (None, worker)):
            self.links.add((worker, receiver))
            self._line_up(_Job(task, receiver, self.link_s(task), _link(worker, receiver)))


def _link(sender: int, receiver: int) -> str:
    return f"link {sender}-{receiver}"
