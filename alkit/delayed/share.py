"""What an epoch over ranks needs beside the engine: every rank ends with all that was trained."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.delayed.modules import Pipeline
from alkit.delayed.stage import ModuleStage
from alkit.engine.group import check_group
from alkit.engine.messages import broadcast
from alkit.engine.ranks import merged, run_ranks
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline

__all__ = ["execute_on_ranks"]


def execute_on_ranks(
    pipeline: Pipeline,
    schedule: Schedule,
    stages: Sequence[ModuleStage],
    batches: Iterable[Any],
    *,
    threads: int,
    replicas: int = 1,
) -> Timeline:
    """Run this rank's module, then give every rank what the others have trained.

    Args:
        replicas: pipelines side by side: rank r runs module r % K of pipeline r // K.
    Returns:
        The timeline of all ranks.
    """
    check_group(len(pipeline) * replicas)
    own = stages[dist.get_rank() % len(stages)]
    if replicas > 1:
        own.reduce = _averaging(len(stages), replicas)
    timeline = run_ranks(schedule, stages, batches, threads=threads, pipelines=replicas)
    if replicas > 1 and own.losses:
        own.losses = list(own.reduce(torch.stack(own.losses)).unbind())
    for rank, stage in enumerate(stages):
        mine = rank == dist.get_rank()
        trained = broadcast(_trained(stage) if mine else None, rank)
        if not mine:
            _take_over(pipeline, stage, trained)
    return merged(timeline)


def _averaging(stages: int, replicas: int) -> Callable[[Tensor], Tensor]:
    """Return the mean over all replicas of this rank's module."""
    columns = [
        dist.new_group([stage + stages * replica for replica in range(replicas)])
        for stage in range(stages)  # all ranks make all groups, in one order
    ]
    group = columns[dist.get_rank() % stages]

    def mean(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=group)
        return tensor / replicas

    return mean


def _trained(stage: ModuleStage) -> dict[str, Any]:
    optimizer = stage.optimizer
    return {
        "weights": dict(stage.module.state_dict()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "losses": torch.stack(stage.losses) if stage.losses else None,
        "flights": stage.peak_flights,
        "versions": stage.versions.peak,
        "input_bytes": stage.input_bytes,
    }


def _take_over(pipeline: Pipeline, stage: ModuleStage, trained: dict[str, Any]) -> None:
    stage.module.load_state_dict(trained["weights"])
    if stage.optimizer is not None:
        stage.optimizer.load_state_dict(trained["optimizer"])
    if trained["losses"] is not None:
        stage.losses = list(trained["losses"].unbind())
    stage.peak_flights = trained["flights"]
    stage.versions.peak = trained["versions"]
    stage.input_bytes = trained["input_bytes"]
