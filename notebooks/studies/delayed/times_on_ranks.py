"""Time methods on ranks beside torch's own pipeline, and predict them in the clock.

Two runs on the same ranks tell what a prediction needs: `seq`, in which one module works at a time,
says what every task takes alone, and `pipedream`, in which all do, how much tasks slow down beside
each other. From then on a task runs at full speed while it is alone, and at

    1 / slowdown        while another one runs, too.

A forward that is run again costs what a forward costs. What travels between ranks is left out: it
took a hundredth of a batch where it was looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F

from alkit.delayed.methods import METHODS
from alkit.delayed.modules import Pipeline
from alkit.delayed.schedules import schedule_for
from alkit.delayed.train import Trained, train_epoch
from alkit.engine.launch import launch
from alkit.engine.optimizers import adam
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from studies.common import torch_pipelines
from studies.common.contenders import fastest_micro
from studies.common.stacks import Stack

FILL = 4  # batches that are not counted


class Costs(NamedTuple):
    """What a prediction needs.

    Attributes:
        seconds: of each (kind, module) alone.
        slowdown: how many times as long a task takes while another one runs.
    """

    seconds: Mapping[tuple[str, int], float]
    slowdown: float

    @property
    def bound(self) -> float:
        """What a pipeline may gain over one module at a time: all loads over the largest."""
        stages = 1 + max(stage for _, stage in self.seconds)
        loads = [
            sum(own for (_, at), own in self.seconds.items() if at == stage)
            for stage in range(stages)
        ]
        return sum(loads) / max(loads)


def costs_of(alone: Timeline, beside: Timeline) -> Costs:
    """Return what two runs of a round tell: `seq`'s, and `pipedream`'s."""
    seconds, busy = _mean_s(alone), _mean_s(beside)
    return Costs(seconds, max(1.0, sum(busy.values()) / sum(seconds.values())))


def on_ranks(stack: Stack, method: str, cuts: Sequence[int]) -> Trained:
    """Train the stack's BP twin with a method, a rank a module; return what all recorded."""
    return launch(_trained, stack, method, list(cuts), ranks=len(cuts) + 1)[0]


def contenders(
    stack: Stack,
    methods: Sequence[str],
    cuts: Sequence[int],
    micro: Sequence[int] = (2, 4, 8, 16),
) -> dict[str, Callable[[], Trained]]:
    """Return, by name, functions that train the stack anew: the methods, and torch's 1F1B.

    Args:
        micro: numbers of micro-batches to try for torch's pipeline; the fastest is taken.
    """
    made = {method: partial(on_ranks, stack, method, cuts) for method in methods}
    train = partial(torch_pipelines.torch_pipeline, schedule="1f1b", cuts=cuts)
    return made | {"1f1b": partial(train, stack, micro=fastest_micro(stack, train, micro))}


def predicted(method: str, costs: Costs, batches: int) -> Timeline:
    """Return the timeline that the clock expects."""
    stages = 1 + max(stage for _, stage in costs.seconds)
    again = METHODS[method].backward in ("replay", "recompute")

    def seconds(task: Task) -> float:
        own = costs.seconds[task.kind, task.stage]
        if again and task.kind == "backward" and task.stage < stages - 1:
            own += costs.seconds["forward", task.stage]
        return own

    def pace(running: int) -> float:  # two cores
        return 1.0 if running < 2 else 2 / (costs.slowdown * running)

    return simulate(schedule_for(method, stages), seconds, batches, pace=pace)


def _trained(stack: Stack, method: str, cuts: Sequence[int]) -> Trained:
    pipeline = Pipeline(stack.model("bp"), F.cross_entropy, cuts, partial(adam, lr=1e-3))
    record = train_epoch(pipeline, list(stack.stream()), method, "ranks")
    return Trained(**{**vars(record), "pipeline": None})  # weights need not travel to the caller


def _mean_s(timeline: Timeline) -> dict[tuple[str, int], float]:
    """Return the mean seconds of each (kind, stage) after fill, as a mean batch has them."""
    last = max(i.batch for i in timeline.intervals)
    kept = timeline.between(FILL, max(FILL, last - FILL)).intervals
    found: dict[tuple[str, int], list[float]] = {}
    for i in kept:
        found.setdefault((i.kind, i.stage), []).append(i.end_s - i.start_s)
    return {key: sum(own) / len(own) for key, own in found.items()}
