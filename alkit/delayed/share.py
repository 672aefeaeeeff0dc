"""What an epoch over ranks needs beside the engine: every rank ends with all that was trained."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from alkit.channel import broadcast
from alkit.delayed.modules import Pipeline
from alkit.delayed.stage import ModuleStage
from alkit.engine_ranks import merged, run_ranks
from alkit.schedule import Schedule
from alkit.timeline import Timeline
from alkit.train_ranks import check_group

__all__ = ["execute_on_ranks"]


def execute_on_ranks(
    pipeline: Pipeline,
    schedule: Schedule,
    stages: Sequence[ModuleStage],
    batches: Iterable[Any],
    *,
    threads: int,
) -> Timeline:
    """Run this rank's module, then give every rank what the others have trained.

    Returns:
        The timeline of all ranks.
    """
    check_group(len(pipeline))
    timeline = run_ranks(schedule, stages, batches, threads=threads)
    for rank, stage in enumerate(stages):
        mine = rank == dist.get_rank()
        trained = broadcast(_trained(stage) if mine else None, rank)
        if not mine:
            _take_over(pipeline, stage, trained)
    return merged(timeline)


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
