"""Schedules as data: tasks, their waits with the reason for each, and the order of every worker.

Executors run a schedule, `clock.py` simulates it, `validate.py` proves things of it. Orders are
generators over batch numbers: a loader need not know its length. An edge says why a task waits:

    data       its payload comes along it                  F(k, t) <- F(k - 1, t)
    order      one after the other on the same state       B(k, t) <- F(k, t),  U(k, t) <- B(k, t)
    weights    the version that it must see                F(k, t) <- U(k, t - 1)
    room       a queue has place again                     F(k, t) <- F(k + 1, t - capacity)
    barrier    the method wants it so

The four schedules of associated learning with three layers, as digits (F, B, U = forward, backward,
update):

    al            one worker        F0B0U0 F1B1U1 F2B2U2 | F0B0U0 F1B1U1 F2B2U2 | ...

    al_fm         forwards          F0F1F2        | F0F1F2        |   a join ends each batch; al_m
                  layer 0             B0U0        |   B0U0        |   joins after all forwards, too
                  layer 1               B1U1      |     B1U1      |
                  layer 2                 B2U2    |       B2U2    |

    al_pipeline   worker 0 (layer 0)  F0B0U0F0B0U0F0B0U0...
                  worker 1 (layer 1)    F1B1U1F1B1U1F1B1U1...                     no join at all
                  worker 2 (layer 2)      F2B2U2F2B2U2F2B2U2...
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

Place = tuple[str, int, int]  # kind, stage, micro: a task of any batch
Edges = Callable[["Task"], tuple["Edge", ...]]
FORWARD, REST = ("forward",), ("backward", "update")


class ScheduleError(ValueError):
    """A schedule can't be run, or doesn't keep its promise."""


class Task(NamedTuple):
    """One piece of work: `kind` is what `stage` does with a micro-batch of a batch."""

    kind: str
    stage: int
    batch: int
    micro: int = 0

    def __str__(self) -> str:
        micro = f".{self.micro}" if self.micro else ""
        return f"{self.kind} of stage {self.stage}, batch {self.batch}{micro}"

    @property
    def place(self) -> Place:
        """The place of this task in a batch."""
        return self.kind, self.stage, self.micro


class Edge(NamedTuple):
    """Why a task waits for `task`: "data", "order", "weights", "room" or "barrier"."""

    kind: str
    task: Task


@dataclass(frozen=True)
class Schedule:
    """The order and the waits of all tasks.

    Attributes:
        stages: in AL a stage is a layer.
        workers: each runs one task at a time.
        order: `order(lane, batches)` yields the tasks of a lane for the given batch numbers. Each
            worker has a lane, or with free workers each stage.
        edges: `edges(task)` gives the tasks that must have ended before `task` starts, besides
            those before it in its lane. Tasks of batches below 0 count as ended. A task has one
            data edge at most, from a task of its own batch.
        staleness: the promise: the most updates that the weights of a forward miss.
        free: any free worker takes the most urgent of the next tasks of all lanes (`clock.py`).
    """

    name: str
    stages: int
    workers: int
    order: Callable[[int, Iterable[int]], Iterator[Task]]
    edges: Edges
    staleness: int = 0
    free: bool = False

    @property
    def lanes(self) -> int:
        """Number of sequences of tasks: one a worker, or with free workers one a stage."""
        return self.stages if self.free else self.workers

    def one_batch(self, lane: int) -> list[Task]:
        """Return the lane's tasks for batch 0, in a run that is long enough to have them all."""
        run = range(self.staleness + 1)
        return [task for task in self.order(lane, run) if task.batch == 0]

    def waits(self, task: Task) -> tuple[Task, ...]:
        """Return the tasks that `task` waits for, without those of batches below 0."""
        return tuple(edge.task for edge in self.edges(task) if edge.task.batch >= 0)

    def takers(self, task: Task) -> tuple[Task, ...]:
        """Return the tasks that take the output of `task`: they have a data edge from it."""
        return tuple(Task(k, s, task.batch, m) for k, s, m in self._takers.get(task.place, ()))

    def lane(self, task: Task) -> int:
        """Return the lane of `task`."""
        return self._lanes[task.place]

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The places of the tasks of a batch, lane by lane."""
        return tuple(self._lanes)

    @cached_property
    def _lanes(self) -> dict[Place, int]:
        return {t.place: lane for lane in range(self.lanes) for t in self.one_batch(lane)}

    @cached_property
    def _takers(self) -> dict[Place, list[Place]]:
        found: dict[Place, list[Place]] = {}
        for kind, stage, micro in self.places:
            for edge in self.edges(Task(kind, stage, 0, micro)):
                if edge.kind == "data":
                    found.setdefault(edge.task.place, []).append((kind, stage, micro))
        return found


def of_rows(name: str, stages: int, rows: Sequence[Sequence[Place]], edges: Edges) -> Schedule:
    """Return a schedule whose workers go through a row of places each, the same in every batch."""

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        for batch in batches:
            yield from (Task(kind, stage, batch, micro) for kind, stage, micro in rows[worker])

    return Schedule(name, stages, len(rows), order, edges)


def row(kinds: Iterable[str], stages: Iterable[int]) -> list[Place]:
    """Return the places of these kinds, stage by stage."""
    return [(kind, stage, 0) for stage in stages for kind in kinds]


def al(layers: int) -> Schedule:
    """Associated learning on one worker: forward, backward and update layer by layer."""
    check_positive(layers=layers)
    return of_rows("al", layers, [row(FORWARD + REST, range(layers))], own_layer)


def al_m(layers: int, workers: int | None = None) -> Schedule:
    """AL-M: all forwards on worker 0, then backward and update on the others, a layer each."""
    return _joined("al_m", layers, workers, forwards_first=True)


def al_fm(layers: int, workers: int | None = None) -> Schedule:
    """AL-FM: as AL-M, but the backward of a layer runs while the layers above it run forward."""
    return _joined("al_fm", layers, workers, forwards_first=False)


def al_pipeline(layers: int, cuts: Sequence[int] | None = None, capacity: int = 2) -> Schedule:
    """The true pipeline: a worker takes batch t + 1 as soon as it has updated for batch t.

    A worker with several layers runs their forwards first, so that the next gets its input early.

    Args:
        cuts: the first layer of every worker but the first; default one worker a layer.
        capacity: batches that may lie between two workers.
    """
    check_positive(layers=layers, capacity=capacity)
    groups = _groups(layers, range(1, layers) if cuts is None else cuts)
    last = {group[-1] for group in groups[:-1]}

    def edges(task: Task) -> tuple[Edge, ...]:
        if task.kind == "forward" and task.stage in last:
            taken = Task("forward", task.stage + 1, task.batch - capacity)
            return *own_layer(task), Edge("room", taken)
        return own_layer(task)

    rows = [[*row(FORWARD, group), *row(REST, group)] for group in groups]
    return of_rows("al_pipeline", layers, rows, edges)


def free_workers(schedule: Schedule, workers: int) -> Schedule:
    """Let workers share all stages of a schedule with a worker a stage; its edges and bits stay."""
    check_positive(workers=workers)
    if schedule.workers != schedule.stages:
        raise ScheduleError(
            f"{schedule.name} has {schedule.workers} workers for {schedule.stages} stages: free"
            " workers need a schedule with a worker a stage"
        )
    return replace(schedule, workers=min(workers, schedule.stages), free=True)


def own_layer(task: Task) -> tuple[Edge, ...]:
    """Return the edges that AL needs: the input from below, and the weights of the last update."""
    kind, stage, batch, _ = task
    if kind == "forward":
        weights = Edge("weights", Task("update", stage, batch - 1))
        below = Edge("data", Task("forward", stage - 1, batch))
        return (below, weights) if stage else (weights,)
    return (Edge("order", Task("forward" if kind == "backward" else "backward", stage, batch)),)


def check_positive(**values: int) -> None:
    """Refuse a number below 1, by its name."""
    for name, value in values.items():
        if value < 1:
            raise ScheduleError(f"{name} is {value}: it must be at least 1")


def _joined(name: str, layers: int, workers: int | None, *, forwards_first: bool) -> Schedule:
    others = layers if workers is None else workers - 1
    check_positive(layers=layers, workers_for_backwards=others)
    groups = _groups(layers, [layers * i // others for i in range(1, others)])

    def edges(task: Task) -> tuple[Edge, ...]:
        joined: list[Task] = []
        if task.kind == "backward" and forwards_first:
            joined = [Task("forward", layers - 1, task.batch)]
        if task[:2] == ("forward", 0):
            joined = [Task("update", layer, task.batch - 1) for layer in range(1, layers)]
        return *own_layer(task), *(Edge("barrier", other) for other in joined)

    rows = [row(FORWARD, range(layers)), *(row(REST, own) for own in groups)]
    return of_rows(name, layers, rows, edges)


def _groups(layers: int, cuts: Sequence[int]) -> list[range]:
    groups = [range(low, high) for low, high in pairwise([0, *cuts, layers])]
    if not all(groups):
        raise ScheduleError(
            f"cuts {[*cuts]} for {layers} layers: give rising layer numbers between 1 and"
            f" {layers - 1}, the first layer of every worker but the first"
        )
    return groups
