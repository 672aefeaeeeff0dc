"""The steps between two decisions: one layout, one schedule, one set of frozen layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from alkit.elastic.held import Held
from alkit.schedule.flushed import gpipe, one_f_one_b
from alkit.schedule.task import Edge, Schedule, Task
from alkit.schedule.timeline import Timeline

SCHEDULES = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclass(frozen=True)
class Segment:
    """What is trained on.

    Attributes:
        rows: of each step's global batch.
        first_step: number of the first step in the run.
        epoch: also the variant of images.
        factor: of the learning rate, by the number of the step.
    """

    rows: Sequence[Tensor]
    first_step: int
    epoch: int
    factor: Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class SegmentResult:
    """What a segment came to, the same on all ranks but for seconds.

    Attributes:
        losses: (steps,), of the network's type.
        squares: for each layer, the sum over steps of its gradient's squared norm.
        timeline: of all workers.
        seconds: of this rank.
        phases: what they are made of: frozen_s, read_s, reduce_s, update_s, pipe_s.
        features: samples and bytes of all ranks: hits, advanced, misses, ...
        held: bytes of every rank.
    """

    losses: Tensor
    squares: Tensor
    timeline: Timeline
    seconds: float
    phases: dict[str, float]
    features: dict[str, int]
    held: list[Held]


def schedule_of(kind: str, stages: int, micro: int, *, joint: bool = True) -> Schedule:
    """Return the schedule of a layout.

    Args:
        joint: updates wait for the gradients of all stages, whose norm they clip by; over ranks
            the sum that is the norm does that.
    """
    plain = SCHEDULES[kind](stages, micro)
    if not joint:
        return plain

    def edges(task: Task) -> tuple[Edge, ...]:
        if task.kind != "update":
            return plain.edges(task)
        last = (Task("backward", stage, task.batch, micro - 1) for stage in range(stages))
        return *plain.edges(task), *(Edge("barrier", other) for other in last)

    return replace(plain, edges=edges)
