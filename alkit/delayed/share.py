"""An epoch over ranks: each runs its modules, then every rank has all that was trained."""

from collections.abc import Iterable, Sequence
from functools import partial
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
    replicated = group.some([range(worker, group.ranks, workers) for worker in range(workers)])
    mine = [stages[at] for at, owner in enumerate(owned) if owner == group.rank % workers]
    for own in mine:
        own.reduce = None if replicated is None else replicated.mean
    timeline = run_ranks(schedule, stages, batches, threads=threads, pipelines=replicas)
    for own in mine:
        if own.reduce and own.losses:
            own.losses.take_over(own.reduce(own.losses.rows()))
    group.share(owned, partial(_trained, stages), partial(_take_over, stages))
    group.close()
    return merged(timeline)


def _trained(stages: Sequence[ModuleStage], at: int) -> tuple[Any, ...]:
    own = stages[at]
    optimizer = None if own.optimizer is None else own.optimizer.state_dict()
    losses = own.losses.rows() if own.losses else None
    peaks = own.peak_flights, own.versions.peak, own.input_bytes
    return dict(own.module.state_dict()), optimizer, losses, *peaks


def _take_over(stages: Sequence[ModuleStage], at: int, trained: tuple[Any, ...]) -> None:
    own = stages[at]
    weights, optimizer, losses, own.peak_flights, own.versions.peak, own.input_bytes = trained
    own.module.load_state_dict(weights)
    if own.optimizer is not None:
        own.optimizer.load_state_dict(optimizer)
    if losses is not None:
        own.losses.take_over(losses)
