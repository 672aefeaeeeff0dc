"""What can go wrong with a schedule, checked for every interleaving at once.

The tasks of the first batches and their edges (a worker's order, and `after`) form a graph. If one
task is an ancestor of another, it ends before the other starts in *every* run; if neither is, some
run has them at the same time. So races, staleness and queue lengths are read off the ancestors,
not tried out.
"""

from dataclasses import dataclass

from alkit.schedule.task import Schedule, ScheduleError, Task

__all__ = ["Report", "validate"]


LINKS = ("send", "receive")  # a link does these, while the stage goes on


@dataclass(frozen=True)
class Report:
    """What `validate` found.

    Attributes:
        tasks: tasks checked.
        capacity: for each stage but the last, the most outputs that can wait for the next stage.
        staleness: for each stage, the most updates that a forward misses.
    """

    tasks: int
    capacity: tuple[int, ...]
    staleness: tuple[int, ...]


def validate(schedule: Schedule, batches: int = 6) -> Report:
    """Check `schedule` over its first batches: waits met, no deadlock, no race, versions as
    promised.

    Raises:
        ScheduleError: naming the tasks at fault.
    """
    orders = [list(schedule.order(w, range(batches))) for w in range(schedule.workers)]
    _check_tasks(schedule, orders, batches)
    ancestors = _ancestors(schedule, orders, batches)
    _check_actors(schedule, ancestors)
    report = Report(
        tasks=len(ancestors.masks),
        capacity=_capacity(schedule, ancestors, batches),
        staleness=_staleness(schedule, ancestors),
    )
    if max(report.staleness) > schedule.staleness:
        raise ScheduleError(
            f"{schedule.name} promises staleness {schedule.staleness} and has {report.staleness}"
        )
    return report


class _Ancestors:
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
        return bool(self.masks[second] >> self.index[first] & 1)


def _check_tasks(schedule: Schedule, orders: list[list[Task]], batches: int) -> None:
    """Every task stands in one worker's order, once; every wait names one of them; updates rise."""
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
        if updates != list(range(batches)):
            raise ScheduleError(
                f"{schedule.name}: stage {stage} updates for the batches {updates}; it must update"
                f" once for each of 0 to {batches - 1}, in order, on one worker"
            )


def _ancestors(schedule: Schedule, orders: list[list[Task]], batches: int) -> _Ancestors:
    """Walk the graph from its start; what can't be reached is a deadlock."""
    ancestors, place = _Ancestors(), [0] * schedule.workers
    moved = True
    while moved:
        moved = False
        for worker, order in enumerate(orders):
            while place[worker] < len(order):
                task = order[place[worker]]
                waits = (other for other in schedule.waits(task) if other.batch < batches)
                parents = [*order[place[worker] - 1 : place[worker]], *waits]
                if any(parent not in ancestors.masks for parent in parents):
                    break
                ancestors.add(task, parents)
                place[worker] += 1
                moved = True
    stuck = [order[at] for order, at in zip(orders, place, strict=True) if at < len(order)]
    if stuck:
        waits = "; ".join(f"{t} waits for {', '.join(map(str, schedule.waits(t)))}" for t in stuck)
        raise ScheduleError(f"{schedule.name} deadlocks: {waits}")
    return ancestors


def _check_actors(schedule: Schedule, ancestors: _Ancestors) -> None:
    """A stage does one thing at a time: no two of its tasks may be unordered, beside transfers."""
    for stage in range(schedule.stages):
        own = [t for t in ancestors.index if t.stage == stage and t.kind not in LINKS]
        for first, second in zip(own, own[1:], strict=False):
            if not ancestors.precedes(first, second):
                raise ScheduleError(
                    f"{schedule.name}: {first} and {second} could run at the same time"
                )


def _capacity(schedule: Schedule, ancestors: _Ancestors, batches: int) -> tuple[int, ...]:
    """Count, when a stage hands on a batch, the earlier ones that the next may not have taken."""
    needed = []
    for stage in range(schedule.stages - 1):
        made = [t for t in ancestors.index if t[:2] == ("forward", stage)]
        waiting = [
            sum(
                not ancestors.precedes(other._replace(stage=stage + 1), task)
                for other in made[: at + 1]
            )
            for at, task in enumerate(made)
        ]
        needed.append(max(waiting))
    return tuple(needed)


def _staleness(schedule: Schedule, ancestors: _Ancestors) -> tuple[int, ...]:
    """Count, for each forward, the updates for earlier batches that don't surely precede it."""
    worst = [0] * schedule.stages
    for task in (t for t in ancestors.index if t.kind == "forward"):
        missed = sum(
            not ancestors.precedes(Task("update", task.stage, batch), task)
            for batch in range(task.batch)
        )
        worst[task.stage] = max(worst[task.stage], missed)
    return tuple(worst)
