"""Check a schedule for faults, in every interleaving at once.

The tasks of the first batches and their edges (a lane's order, and `edges`) form a graph. If one
task is an ancestor of another, it ends before the other starts in *every* run; if neither is, some
run has them at the same time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from operator import length_hint, or_

from alkit.schedule.task import Edge, Schedule, ScheduleError, Task

LINKS = ("send", "receive")  # a link does these, while the stage goes on


@dataclass(frozen=True)
class Report:
    """The findings of `validate`.

    Attributes:
        queues: by (kind, stage) of a task and of its taker, the most outputs that can wait there,
            as many as were checked where nothing bounds them.
        staleness: for each stage, the most updates that a forward misses.
    """

    queues: dict[tuple[str, int, str, int], int]
    staleness: tuple[int, ...]


def validate(schedule: Schedule, batches: int | None = None) -> Report:
    """Check a schedule: waits met, no deadlock, no race, versions and edges as promised.

    Args:
        batches: their number; default until every edge has met a batch at its other end.
    Raises:
        ScheduleError: naming the tasks at fault.
    """
    ancestors = Ancestors(schedule, batches)
    for stage in range(schedule.stages):  # does one thing at a time, besides transfers
        own = [t for t in ancestors.masks if t.stage == stage and t.kind not in LINKS]
        for first, second in pairwise(own):
            if not ancestors.precedes(first, second):
                said = f"{first} and {second} could run at the same time"
                raise ScheduleError(f"{schedule.name}: {said}")
    staleness = _staleness(schedule, ancestors)
    if max(staleness) > (most := schedule.staleness):
        raise ScheduleError(f"{schedule.name} promises staleness {most} and has {staleness}")
    return Report(_queues(schedule, ancestors), staleness)


class Ancestors:
    """Of each task of the first batches, all that end before it starts in every run, as bits."""

    def __init__(self, schedule: Schedule, batches: int | None = None) -> None:
        batches = _horizon(schedule) if batches is None else batches
        lanes = [list(_order(schedule, lane, batches)) for lane in range(schedule.lanes)]
        _check_tasks(schedule, lanes, batches)
        parents = {task: list(_waits(schedule, task, batches)) for lane in lanes for task in lane}
        for before, task in chain.from_iterable(map(pairwise, lanes)):
            parents[task].append(before)
        for task, others in parents.items():
            if lost := next((other for other in others if other not in parents), None):
                raise ScheduleError(f"{schedule.name}: {task} waits for {lost}, which nobody runs")
        try:
            order = tuple(TopologicalSorter(parents).static_order())
        except CycleError as error:
            told = " waits for ".join(map(str, reversed(error.args[1])))
            raise ScheduleError(f"{schedule.name} deadlocks: {told}") from error
        self.bits = {task: 1 << at for at, task in enumerate(order)}
        self.masks: dict[Task, int] = {}
        for task in order:
            ended = (self.masks[other] | self.bits[other] for other in parents[task])
            self.masks[task] = reduce(or_, ended, 0)

    def precedes(self, first: Task, second: Task) -> bool:
        """Say whether `first` surely ends before `second` starts; one that never runs does not."""
        return bool(self.masks[second] & self.bits.get(first, 0))


def _horizon(schedule: Schedule) -> int:
    """Return a number of batches that shows the steady state."""
    far = 1 << 10  # a batch number with no ends near
    tasks = (Task(kind, stage, far, micro) for kind, stage, micro in schedule.places)
    lags = [far - edge.task.batch for task in tasks for edge in schedule.edges(task)]
    return 3 + max(3, schedule.staleness, *lags)


def _order(schedule: Schedule, lane: int, batches: int) -> Iterator[Task]:
    """Yield the tasks of a lane; one that looks ahead would wait for ever for the loader to end."""
    numbers, left = iter(range(batches)), batches
    for task in schedule.order(lane, numbers):
        taken, left = left - length_hint(numbers), length_hint(numbers)
        if taken > 1:
            raise ScheduleError(
                f"{schedule.name}: the order of lane {lane} looks ahead: it takes {taken} batch"
                f" numbers before {task}; let it take one, yield its tasks, and go on"
            )
        yield task


def _check_tasks(schedule: Schedule, lanes: list[list[Task]], batches: int) -> None:
    count = Counter(task for lane in lanes for task in lane)
    if twice := [task for task, times in count.items() if times > 1]:
        raise ScheduleError(f"{schedule.name} runs twice: {twice[0]}")
    for stage in range(schedule.stages):
        updates = [task.batch for task in count if task[:2] == ("update", stage)]
        if updates != list(range(batches)):
            raise ScheduleError(
                f"{schedule.name}: stage {stage} updates for the batches {updates}; it must update"
                f" once for each of 0 to {batches - 1}, in order, in one lane"
            )


def _waits(schedule: Schedule, task: Task, batches: int) -> Iterator[Task]:
    """Yield the tasks that a task waits for; its edges are of their kinds: executors rely on it."""
    edges = schedule.edges(task)
    if sum(edge.kind == "data" for edge in edges) > 1:
        raise ScheduleError(f"{schedule.name}: {task} has two data edges: it takes one payload")
    for edge in edges:
        if task.batch == 1 and not _fits(schedule, task, edge):
            raise ScheduleError(
                f"{schedule.name}: {task} waits for {edge.task}, which is no {edge.kind} edge: give"
                " data, order, weights, room or barrier, as `alkit.schedule.task` has them"
            )
        if 0 <= edge.task.batch < batches:
            yield edge.task


def _fits(schedule: Schedule, task: Task, edge: Edge) -> bool:
    other, earlier = edge.task, edge.task.batch < task.batch
    apart = other.stage != task.stage or "send" in (other.kind, task.kind)
    fits = {
        "data": apart and (other.batch, other.micro) == (task.batch, task.micro),
        "order": (other.stage, other.batch) == (task.stage, task.batch),
        "weights": earlier and (other.kind, other.stage) == ("update", task.stage),
        "room": earlier and other.place in [taker.place for taker in schedule.takers(task)],
        "barrier": True,
    }
    return fits.get(edge.kind, False)


def _queues(schedule: Schedule, ancestors: Ancestors) -> dict[tuple[str, int, str, int], int]:
    """Count, when a task hands on its output, the earlier ones that may not have been taken."""
    sent = defaultdict[tuple[str, int, str, int], list[tuple[Task, Task]]](list)
    for task in ancestors.masks:
        for taker in schedule.takers(task):
            if taker in ancestors.masks:
                sent[*task[:2], *taker[:2]].append((task, taker))
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
    for task in (t for t in ancestors.masks if t.kind == "forward"):
        updates = (Task("update", task.stage, batch) for batch in range(task.batch))
        missed = sum(not ancestors.precedes(update, task) for update in updates)
        worst[task.stage] = max(worst[task.stage], missed)
    return tuple(worst)
