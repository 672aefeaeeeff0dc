"""The schedules of the page that needs no kernel: what each task waits for, as plain numbers.

Without limits of cores and links a schedule in virtual time is a longest path. Tasks are sorted so
that whatever one waits for stands before it; then, for any durations,

    start = max(end of the worker's task before, ends of what it waits for)

A graph is a list of [worker, kind, stage, batch, numbers of tasks that it waits for ...].
"""

from alkit.delayed.schedules import schedule_for
from alkit.schedule.clock import simulate
from alkit.schedule.cuts import balanced_cuts
from alkit.schedule.task import Schedule, Task, al, al_fm, al_m, al_pipeline, block_by_block

__all__ = ["BATCHES", "KINDS", "MOST", "graph", "graphs", "schedules"]

KINDS = ("forward", "backward", "update")
BATCHES, MOST = 6, 8
DELAYED = ("ddg", "fr", "pipedream")  # a worker a layer

Graph = list[list[int]]


def graphs() -> dict[str, dict[str, Graph]]:
    """Return by "layers/workers" the graphs of all methods."""
    sizes = [(layers, workers) for layers in range(1, MOST + 1) for workers in range(1, MOST + 1)]
    return {
        f"{layers}/{workers}": {each.name: graph(each) for each in schedules(layers, workers)}
        for layers, workers in sizes
    }


def schedules(layers: int, workers: int) -> list[Schedule]:
    """Return the schedules of so many layers on at most so many workers, cut evenly."""
    workers = min(workers, layers)
    cuts = balanced_cuts([1.0] * layers, workers)
    found = [block_by_block(layers), al(layers)]
    if workers > 1:
        found += [al_m(layers, workers), al_fm(layers, workers)]
    found.append(al_pipeline(layers, cuts))
    if workers == layers > 1:
        found += [schedule_for(method, layers) for method in DELAYED]
    return found


def graph(schedule: Schedule, batches: int = BATCHES) -> Graph:
    """Return the tasks of so many batches, in an order that suits any durations."""
    timeline = simulate(schedule, lambda task: 1.0, batches)
    rows = sorted(timeline.intervals, key=lambda each: each.start_s)
    tasks = [Task(each.kind, each.stage, each.batch, each.micro) for each in rows]
    number = {task: at for at, task in enumerate(tasks)}
    return [
        [
            int(row.resource.removeprefix("worker ")),
            KINDS.index(task.kind),
            task.stage,
            task.batch,
            *(number[each] for each in schedule.waits(task) if each.batch < batches),
        ]
        for row, task in zip(rows, tasks, strict=True)
    ]
