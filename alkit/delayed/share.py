"""What an epoch over ranks needs beside the engine: every rank ends with all that was trained."""

from collections.abc import Iterable, Sequence
from typing import Any

from alkit.delayed.modules import Pipeline
from alkit.delayed.stage import ModuleStage
from alkit.engine.group import Group
from alkit.engine.ranks import merged, owners, run_ranks
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline


def execute_on_ranks(
    pipeline: Pipeline,
    schedule: Schedule,
    stages: Sequence[ModuleStage],
    batches: Iterable[Any],
    *,
    threads: int,
    replicas: int = 1,
) -> Timeline:
    """Run this rank's modules, then give every rank what the others have trained.

    Args:
        replicas: pipelines side by side: of W workers, rank r is worker r % W of pipeline r // W.
    Returns:
        The timeline of all ranks.
    """
    group = Group("ranks")
    workers, owned = schedule.workers, owners(schedule)
    group.check_size(workers=workers * replicas)
    columns = [range(worker, group.ranks, workers) for worker in range(workers)]
    replicated = group.some(columns)
    mine = [stages[at] for at, owner in enumerate(owned) if owner == group.rank % workers]
    for own in mine:
        own.reduce = None if replicated is None else replicated.mean
    timeline = run_ranks(schedule, stages, batches, threads=threads, pipelines=replicas)
    for own in mine:
        if own.reduce and own.losses:
            own.losses.take_over(own.reduce(own.losses.rows()))
    group.share(owned, lambda at: _trained(stages[at]), lambda at, t: _take_over(stages[at], t))
    group.close()
    return merged(timeline)


def _trained(stage: ModuleStage) -> dict[str, Any]:
    optimizer = stage.optimizer
    return {
        "weights": dict(stage.module.state_dict()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "losses": stage.losses.rows() if stage.losses else None,
        "flights": stage.peak_flights,
        "versions": stage.versions.peak,
        "input_bytes": stage.input_bytes,
    }


def _take_over(stage: ModuleStage, trained: dict[str, Any]) -> None:
    stage.module.load_state_dict(trained["weights"])
    if stage.optimizer is not None:
        stage.optimizer.load_state_dict(trained["optimizer"])
    if trained["losses"] is not None:
        stage.losses.take_over(trained["losses"])
    stage.peak_flights = trained["flights"]
    stage.versions.peak = trained["versions"]
    stage.input_bytes = trained["input_bytes"]
