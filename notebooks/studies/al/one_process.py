"""One process with many devices, in virtual time: each worker is a thread.

Layers share devices, and threads an interpreter. A task needs either its stage's device, first come
first served, or the interpreter. By default that is

    backward           the device
    forward, update    the interpreter: they are launches and optimiser loops

and a forward on the interpreter starts only when its device has nothing else left to do, updates
included: in the published code a copy from the host waits for all that the device was given before.
Tasks that want the interpreter at the same time share it evenly, and lose by sharing: together they
get on as if it worked at

    1 / (contention + crowding * threads)        of its speed, threads = stages of the schedule
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from alkit.schedule.resources import Machine, Need, Resource
from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Timeline

__all__ = ["ALL_KINDS", "Sharing", "by_device", "one_process"]

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


def one_process(
    schedule: Schedule,
    placement: Sequence[int],
    on_device: Collection[str] = ("backward",),
    sharing: Sharing | None = None,
) -> Machine:
    """Share devices among layers, and an interpreter among threads.

    Args:
        placement: the device of each stage.
        on_device: the kinds of task that need their device; the others need the interpreter.
        sharing: default an interpreter that loses nothing by being shared.
    Raises:
        ValueError: not one device a stage.
    """
    if len(placement) != schedule.stages:
        raise ValueError(f"{len(placement)} devices for {schedule.stages} stages: give one each")
    pace = partial((sharing or Sharing()).pace, threads=schedule.stages)

    def need(task: Task) -> Need:
        device = _device(placement[task.stage])
        if task.kind in on_device:
            return Need(device, busy=device)
        own = {
            "update": Need("interpreter", busy=device),
            "forward": Need("interpreter", idle=device),
        }
        return own.get(task.kind, Need("interpreter"))

    def turn(task: Task) -> tuple[int, ...]:
        return task.kind == "forward", task.stage  # forwards last, for they wait most

    return Machine({"interpreter": Resource(None, pace)}, need, turn, moment_s=1e-12)


def by_device(timeline: Timeline, placement: Sequence[int]) -> Timeline:
    """Return the timeline with a row a device instead of a row a worker."""
    names = [_device(device) for device in range(max(placement) + 1)]
    moved = (i._replace(resource=names[placement[i.stage]]) for i in timeline.intervals)
    return Timeline.of(moved, names, timeline.clock)


def _device(number: int) -> str:
    return f"device {number}"
