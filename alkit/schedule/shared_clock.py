"""The clock of one process with many devices: layers share devices, threads an interpreter.

Each worker is a thread. A task needs either its stage's device, first come first served, or the
interpreter. By default that is

    backward           the device
    forward, update    the interpreter: they are launches and optimiser loops

and a forward on the interpreter starts only when its device has nothing else left to do, updates
included: in the published code a copy from the host waits for all that the device was given before.
Tasks that want the interpreter at the same time share it evenly, and lose by sharing: together they
get on as if it worked at

    1 / (contention + crowding * threads)        of its speed, threads = stages of the schedule

`alkit.schedule.clock` is for workers that share nothing but cores.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Interval, Timeline

__all__ = ["ALL_KINDS", "Sharing", "by_device", "simulate"]

EPSILON = 1e-12  # seconds of work that count as none
ALL_KINDS = ("forward", "backward", "backward_input", "backward_weight", "update")


@dataclass(frozen=True)
class Sharing:
    """What sharing the interpreter costs; with the defaults, nothing."""

    contention: float = 1.0
    crowding: float = 0.0

    def pace(self, running: int, threads: int) -> float:
        """Return the speed of each of `running` tasks on the interpreter, 1 for one alone."""
        if running < 2:
            return 1.0
        return 1 / (self.contention + self.crowding * threads) / running


def simulate(
    schedule: Schedule,
    placement: Sequence[int],
    seconds: Callable[[Task], float],
    batches: int,
    *,
    on_device: Collection[str] = ("backward",),
    sharing: Sharing | None = None,
    hop_s: float = 0.0,
) -> Timeline:
    """Return the timeline of `batches` batches; its resources are the workers.

    Args:
        placement: the device of each stage.
        seconds: of a task that has its resource for itself.
        on_device: the kinds of task that need their device; the others need the interpreter.
        sharing: default an interpreter that loses nothing by being shared.
        hop_s: added to a forward whose stage is on another device than the stage before: the
            time that its worker waits for copies there and back.
    Raises:
        ValueError: no batches, or not one device a stage.
    """
    if batches < 1:
        raise ValueError(f"batches is {batches}: it must be at least 1")
    if len(placement) != schedule.stages:
        raise ValueError(f"{len(placement)} devices for {schedule.stages} stages: give one each")
    clock = _Clock(schedule, placement, seconds, batches, on_device, sharing or Sharing(), hop_s)
    return clock.run()


def by_device(timeline: Timeline, placement: Sequence[int]) -> Timeline:
    """Return the timeline with a row a device instead of a row a worker."""
    names = [f"device {device}" for device in range(max(placement) + 1)]
    moved = (i._replace(resource=names[placement[i.stage]]) for i in timeline.intervals)
    return Timeline.of(moved, names)


@dataclass
class _Running:
    """A task that has its resource, or stands in a device's queue."""

    task: Task
    worker: int
    left_s: float
    start_s: float


@dataclass
class _Device:
    queue: deque[_Running] = field(default_factory=deque)  # the first one runs
    updates: int = 0  # on the interpreter now, of stages that live here

    @property
    def idle(self) -> bool:
        return not self.queue and not self.updates


class _Clock:
    """Tasks on the interpreter advance together; those at the head of a device's queue beside."""

    def __init__(
        self,
        schedule: Schedule,
        placement: Sequence[int],
        seconds: Callable[[Task], float],
        batches: int,
        on_device: Collection[str],
        sharing: Sharing,
        hop_s: float,
    ) -> None:
        self.schedule, self.placement, self.seconds = schedule, placement, seconds
        self.on_device, self.sharing, self.hop_s = on_device, sharing, hop_s
        self.batches = batches
        self.orders: list[Iterator[Task]] = [
            schedule.order(worker, range(batches)) for worker in range(schedule.workers)
        ]
        self.next = [next(order, None) for order in self.orders]
        self.busy: set[int] = set()  # workers in a task
        self.interpreter: list[_Running] = []
        self.devices = {device: _Device() for device in placement}
        self.done: set[Task] = set()
        self.intervals: list[Interval] = []
        self.now = 0.0

    def run(self) -> Timeline:
        while True:
            self._start()
            running = self._running()
            if not running:
                break
            self._advance(running)
        if any(task is not None for task in self.next):
            raise ValueError(f"{self.schedule.name} deadlocks: see alkit.schedule.validate")
        return Timeline.of(self.intervals, [f"worker {w}" for w in range(self.schedule.workers)])

    def _start(self) -> None:
        """Give every worker that can go on its next task; forwards last, for they wait most."""
        for worker, task in sorted(self._ready(), key=lambda one: one[1].kind == "forward"):
            device = self.devices[self.placement[task.stage]]
            launched = task.kind not in self.on_device
            if launched and task.kind == "forward" and not device.idle:
                continue
            self.busy.add(worker)
            one = _Running(task, worker, self.seconds(task) + self._hop(task), self.now)
            if not launched:
                device.queue.append(one)
                continue
            self.interpreter.append(one)
            device.updates += task.kind == "update"

    def _ready(self) -> Iterator[tuple[int, Task]]:
        for worker, task in enumerate(self.next):
            if worker in self.busy or task is None:
                continue
            waits = (other for other in self.schedule.waits(task) if other.batch < self.batches)
            if all(other in self.done for other in waits):
                yield worker, task

    def _hop(self, task: Task) -> float:
        before, here = self.placement[max(0, task.stage - 1)], self.placement[task.stage]
        return self.hop_s if task.kind == "forward" and before != here else 0.0

    def _running(self) -> list[tuple[_Running, float]]:
        """Return what runs now, and at which speed."""
        pace = self.sharing.pace(len(self.interpreter), self.schedule.stages)
        shared = [(one, pace) for one in self.interpreter]
        return shared + [(d.queue[0], 1.0) for d in self.devices.values() if d.queue]

    def _advance(self, running: list[tuple[_Running, float]]) -> None:
        """Let time pass until the next task ends."""
        step_s = min(one.left_s / pace for one, pace in running)
        self.now += step_s
        for one, pace in running:
            one.left_s -= step_s * pace
            if one.left_s <= EPSILON:
                self._finish(one)

    def _finish(self, one: _Running) -> None:
        device = self.devices[self.placement[one.task.stage]]
        if one.task.kind in self.on_device:
            device.queue.popleft()
            if device.queue:
                device.queue[0].start_s = self.now
        else:
            self.interpreter.remove(one)
            device.updates -= one.task.kind == "update"
        self.done.add(one.task)
        self.busy.discard(one.worker)
        self.next[one.worker] = next(self.orders[one.worker], None)
        self.intervals.append(Interval(f"worker {one.worker}", *one.task, one.start_s, self.now))
