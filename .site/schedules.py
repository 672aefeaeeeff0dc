"""The schedules of the page that needs no kernel: what each task waits for, as plain numbers.

Without limits of cores and links a schedule in virtual time is a longest path. Tasks are sorted so
that whatever one waits for stands before it; then, for any durations,

    start = max(end of the worker's task before, ends of what it waits for)

A task is a list [worker, kind, layer, batch, numbers of tasks that it waits for ...].
"""

from collections.abc import Iterator
from typing import TypedDict

from alkit.delayed.methods import METHODS as DELAYED
from alkit.delayed.schedules import SHARED, schedule_for
from alkit.engine.costs import balanced_cuts
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import block_by_block
from alkit.schedule.task import Schedule, Task, al, al_fm, al_m, al_pipeline

__all__ = ["BATCHES", "KINDS", "MOST", "Graph", "cost", "graph", "graphs", "schedules"]

KINDS = ("forward", "backward", "update", "backward_input", "backward_weight")
BATCHES, MOST, MICRO = 6, 8, 4
OWN = ("ddg", "ddg_barrier", "fr", "fr_barrier", "fr_1f1b", "2bw")  # a worker per layer
OWN += ("pipedream", "pipedream_recompute")
FLUSHED = ("gpipe", "1f1b", "zero_bubble")


class Graph(TypedDict):
    """A method's tasks.

    Attributes:
        micro: micro-batches of a batch; each takes so much less of a forward and a backward.
        again: the layers, from the lowest, whose backward runs their forward once more.
    """

    micro: int
    again: int
    tasks: list[list[int]]


def graphs() -> dict[str, dict[str, Graph]]:
    """Return by "layers/workers" the graphs of all methods, workers no more than layers."""
    sizes = [(layers, workers) for layers in range(1, MOST + 1) for workers in range(1, layers + 1)]
    return {
        f"{layers}/{workers}": {
            name: graph(name, made) for name, made in schedules(layers, workers).items()
        }
        for layers, workers in sizes
    }


def schedules(layers: int, workers: int) -> dict[str, Schedule]:
    """Return by method the schedules of so many layers on so many workers, cut evenly.

    Methods with a worker per layer are there where the numbers agree, those with two layers per
    worker where there are twice as many layers.
    """
    found = {"bp": block_by_block(layers)}
    if workers > 1:
        found["bp_cut"] = schedule_for("1f1b", layers, workers=workers)
        found |= {name: schedule_for(name, layers, MICRO, workers=workers) for name in FLUSHED}
    if layers == 2 * workers > 2:
        found |= {name: schedule_for(name, layers, 2 * workers, workers=workers) for name in SHARED}
    if workers == layers > 1:
        found |= {name: schedule_for(name, layers, _micro(name, layers)) for name in OWN}
    found["al"] = al(layers)
    if workers > 1:
        found |= {"al_m": al_m(layers, workers), "al_fm": al_fm(layers, workers)}
    return found | {"al_pipeline": al_pipeline(layers, balanced_cuts([1.0] * layers, workers))}


def _micro(name: str, layers: int) -> int:
    return layers if DELAYED[name].accumulates else 1


def cost(graph: Graph, kind: str, layer: int, costs: tuple[float, float, float]) -> float:
    """Return what a task takes, for costs of a whole batch: forward, backward, update."""
    forward, backward, update = costs
    halves = {"backward_input": backward / 2, "backward_weight": backward / 2, "update": update}
    whole = {"forward": forward, "backward": backward + (layer < graph["again"]) * forward}
    return (whole | halves)[kind] / (1 if kind == "update" else graph["micro"])


def graph(name: str, schedule: Schedule, batches: int = BATCHES) -> Graph:
    """Return the tasks of so many batches, in an order that suits any durations."""
    timeline = simulate(schedule, lambda task: 1.0, batches)
    rows = sorted(timeline.intervals, key=lambda each: each.start_s)
    tasks = [Task(each.kind, each.stage, each.batch, each.micro) for each in rows]
    number = {task: at for at, task in enumerate(tasks)}
    listed = [
        [
            int(row.resource.removeprefix("worker ")),
            KINDS.index(task.kind),
            task.stage,
            task.batch,
            *_waits(schedule, task, number),
        ]
        for row, task in zip(rows, tasks, strict=True)
    ]
    micro = 1 + max(task.micro for task in tasks)
    again = name in DELAYED and DELAYED[name].backward in ("replay", "recompute")
    return {"micro": micro, "again": again * (schedule.stages - 1), "tasks": listed}


def _waits(schedule: Schedule, task: Task, number: dict[Task, int]) -> Iterator[int]:
    return (number[each] for each in schedule.waits(task) if each in number)
