"""What can go wrong with a schedule, checked for every interleaving at once.

The tasks of the first batches and their edges (a lane's order, and `edges`) form a graph. If one
task is an ancestor of another, it ends before the other starts in *every* run; if neither is, some
run has them at the same time. So races, staleness and queue lengths are read off the ancestors,
not tried out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from alkit.schedule.task import EDGES, Edge, Schedule, ScheduleError, Task

LINKS = ("send", "receive")  # a link does these, while the stage goes on


@dataclass(frozen=True)
class Report:
    """What `validate` found.

    Attributes:
        tasks: tasks checked.
        queues: by kind and stage of a task, and kind and stage of what takes its output, the most
            outputs that can wait there: what a queue must hold. As many as were checked where
            nothing bounds them.
        staleness: for each stage, the most updates that a forward misses.
    """

    tasks: int
    queues: dict[tuple[str, int, str, int], int]
    staleness: tuple[int, ...]

    @property
    def capacity(self) -> tuple[int, ...]:
        """For each stage but the last, the most outputs that can wait for the next stage."""
        stages = range(len(self.staleness) - 1)
        return tuple(self.queues["forward", k, "forward", k + 1] for k in stages)


def validate(schedule: Schedule, batches: int | None = None) -> Report:
    """Check `schedule` over its first batches: waits met, no deadlock, no race, versions as
    promised, edges that are what they are called.

    Args:
        batches: default as many as it takes until every edge has met a batch at its other end.
    Raises:
        ScheduleError: naming the tasks at fault.
    """
    batches = _horizon(schedule) if batches is None else batches
    orders = _orders(schedule, batches)
    _check_tasks(schedule, orders, batches)
    _check_edges(schedule, (task for order in orders for task in order if task.batch == 1))
    ancestors = _ancestors(schedule, orders, batches)
    _check_actors(schedule, ancestors)
    report = Report(
        tasks=len(ancestors.masks),
        queues=_queues(schedule, ancestors),
        staleness=_staleness(schedule, ancestors),
    )
    if max(report.staleness) > schedule.staleness:
        raise ScheduleError(
            f"{schedule.name} promises staleness {schedule.staleness} and has {report.staleness}"
        )
    return report


def ancestors_of(schedule: Schedule) -> "Ancestors":
    """Return which tasks of the first batches end before which others start, in every run."""
    batches = _horizon(schedule)
    return _ancestors(schedule, _orders(schedule, batches), batches)


def _orders(schedule: Schedule, batches: int) -> list[list[Task]]:
    return [list(_order(schedule, lane, batches)) for lane in range(schedule.lanes)]


def _order(schedule: Schedule, lane: int, batches: int) -> Iterator[Task]:
    """Yield a lane's tasks; an order that looks ahead would wait for ever for the loader's end."""
    drawn, before = 0, 0

    def numbers() -> Iterator[int]:
        nonlocal drawn
        for batch in range(batches):
            drawn += 1
            yield batch

    for task in schedule.order(lane, numbers()):
        if drawn > before + 1:
            raise ScheduleError(
                f"{schedule.name}: the order of lane {lane} looks ahead: it takes {drawn - before}"
                f" batch numbers before {task}; let it take one, yield its tasks, and go on"
            )
        before = drawn
        yield task


def _horizon(schedule: Schedule) -> int:
    """Return a number of batches that shows the steady state."""
    far = 1 << 10  # a batch number with no ends near
    tasks = (Task(kind, stage, far, micro) for kind, stage, micro in schedule.places)
    lags = [far - edge.task.batch for task in tasks for edge in schedule.edges(task)]
    return 3 + max(3, schedule.staleness, *lags)


class Ancestors:
    """Which tasks end before which others start, as bit masks over the order of insertion."""

    def __init__(self) -> None:
        self.index: dict[Task, int] = {}
        self.masks: dict[Task, int] = {}

    def add(self, task: Task, parents: list[Task]) -> None:
        mask = 0
        for parent in parents:
            mask |= self.masks[parent] | 1 << self.index[parent]
        self.index[task] = len(self.index)
        self.masks[task] = mask

    def precedes(self, first: Task, second: Task) -> bool:
        """Say whether `first` surely ends before `second` starts; what never runs does not."""
        at = self.index.get(first)
        return at is not None and bool(self.masks[second] >> at & 1)


def _check_tasks(schedule: Schedule, orders: list[list[Task]], batches: int) -> None:
    """Every task stands in one lane, once; every wait names one of them; updates rise."""
    tasks = [task for order in orders for task in order]
    known = set(tasks)
    if len(known) < len(tasks):
        twice = next(task for task in tasks if tasks.count(task) > 1)
        raise ScheduleError(f"{schedule.name} runs twice: {twice}")
    for task in tasks:
        for other in schedule.waits(task):
            if other not in known and other.batch < batches:
                raise ScheduleError(f"{schedule.name}: {task} waits for {other}, which nobody runs")
    for stage in range(schedule.stages):
        updates = [t.batch for order in orders for t in order if t[:2] == ("update", stage)]
        least = batches if schedule.drains else batches - schedule.staleness
        if len(updates) < least or updates != list(range(len(updates))):
            raise ScheduleError(
                f"{schedule.name}: stage {stage} updates for the batches {updates}; it must update"
                f" once for each of 0 to {least - 1}, in order, in one lane"
            )


def _check_edges(schedule: Schedule, tasks: Iterable[Task]) -> None:
    """Edges are what they are called: a kind of edge is a promise that executors rely on."""
    for task in tasks:
        edges = schedule.edges(task)
        if sum(edge.kind == "data" for edge in edges) > 1:
            raise ScheduleError(f"{schedule.name}: {task} has two data edges: it takes one payload")
        for edge in edges:
            if edge.kind not in EDGES:
                known = ", ".join(EDGES)
                raise ScheduleError(f"{schedule.name}: unknown edge {edge.kind!r}: give {known}")
            if not _fits(schedule, task, edge):
                raise ScheduleError(
                    f"{schedule.name}: {task} waits for {edge.task}, which is no {edge.kind} edge:"
                    f" {RULES[edge.kind]}"
                )


RULES = {
    "data": "it comes from another stage, or over a link, of the same batch and micro-batch",
    "order": "it joins two tasks of one stage and one batch",
    "weights": "it comes from an update of an earlier batch of the same stage",
    "room": "it comes from what took an earlier output of the same stage",
}


def _fits(schedule: Schedule, task: Task, edge: Edge) -> bool:
    kind, other = edge
    if kind == "data":
        apart = other.stage != task.stage or "send" in (other.kind, task.kind)
        return apart and (other.batch, other.micro) == (task.batch, task.micro)
    if kind == "order":
        return (other.stage, other.batch) == (task.stage, task.batch)
    if kind == "weights":
        return (other.kind, other.stage) == ("update", task.stage) and other.batch < task.batch
    if kind == "room":
        taken = (taker.place for taker in schedule.takers(task))
        return other.batch < task.batch and other.place in taken
    return True


def _ancestors(schedule: Schedule, orders: list[list[Task]], batches: int) -> Ancestors:
    """Walk the graph from its start; what can't be reached is a deadlock."""
    ancestors, place = Ancestors(), [0] * schedule.lanes
    moved = True
    while moved:
        moved = False
        for lane, order in enumerate(orders):
            while place[lane] < len(order):
                task = order[place[lane]]
                waits = (other for other in schedule.waits(task) if other.batch < batches)
                parents = [*order[place[lane] - 1 : place[lane]], *waits]
                if any(parent not in ancestors.masks for parent in parents):
                    break
                ancestors.add(task, parents)
                place[lane] += 1
                moved = True
    stuck = [order[at] for order, at in zip(orders, place, strict=True) if at < len(order)]
    if stuck:
        told = "; ".join(f"{t} waits for {', '.join(map(str, schedule.waits(t)))}" for t in stuck)
        raise ScheduleError(f"{schedule.name} deadlocks: {told}")
    return ancestors


def _check_actors(schedule: Schedule, ancestors: Ancestors) -> None:
    """A stage does one thing at a time: no two of its tasks may be unordered, beside transfers."""
    for stage in range(schedule.stages):
        own = [t for t in ancestors.index if t.stage == stage and t.kind not in LINKS]
        for first, second in zip(own, own[1:], strict=False):
            if not ancestors.precedes(first, second):
                raise ScheduleError(
                    f"{schedule.name}: {first} and {second} could run at the same time"
                )


def _queues(schedule: Schedule, ancestors: Ancestors) -> dict[tuple[str, int, str, int], int]:
    """Count, when a task hands on its output, the earlier ones that may not have been taken."""
    sent: dict[tuple[str, int, str, int], list[tuple[Task, Task]]] = {}
    for task in ancestors.index:
        for taker in schedule.takers(task):
            if taker in ancestors.index:
                sent.setdefault((*task[:2], *taker[:2]), []).append((task, taker))
    return {
        queue: max(
            sum(not ancestors.precedes(taker, task) for _, taker in pairs[: at + 1])
            for at, (task, _) in enumerate(pairs)
        )
        for queue, pairs in sent.items()
    }


def _staleness(schedule: Schedule, ancestors: Ancestors) -> tuple[int, ...]:
    """Count, for each forward, the updates for earlier batches that don't surely precede it."""
    worst = [0] * schedule.stages
    for task in (t for t in ancestors.index if t.kind == "forward"):
        missed = sum(
            not ancestors.precedes(Task("update", task.stage, batch), task)
            for batch in range(task.batch)
        )
        worst[task.stage] = max(worst[task.stage], missed)
    return tuple(worst)
