"""What an epoch over ranks needs beside the engine: one cut for all, and what each has trained."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from alkit.al.stages import Epoch, optimizers_of, updating
from alkit.engine.group import Group
from alkit.engine.ranks import merged, owners, run_ranks
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline


def execute_on_ranks(
    epoch: Epoch, schedule: Schedule, batches: Iterable[Any], group: Group, *, threads: int
) -> Timeline:
    """Run this rank's part, then give every rank what the others have trained.

    Returns:
        The timeline of all ranks.
    """
    timeline = run_ranks(schedule, epoch.ran, batches, threads=threads)
    group.share(owners(schedule), partial(_trained, epoch), partial(_take_over, epoch))
    return merged(timeline)


def _trained(epoch: Epoch, stage: int) -> dict[str, Any]:
    """Return all that training this layer, or the head, has changed."""
    part = updating(epoch.model)[stage]
    return {
        "weights": dict(part.state_dict()),
        "optimizers": [None if o is None else o.state_dict() for o in optimizers_of(part)],
        "losses": epoch.by_stage[stage].rows(),
    }


def _take_over(epoch: Epoch, stage: int, trained: dict[str, Any]) -> None:
    part = updating(epoch.model)[stage]
    part.load_state_dict(trained["weights"])
    for optimizer, state in zip(optimizers_of(part), trained["optimizers"], strict=True):
        if optimizer is not None:
            optimizer.load_state_dict(state)
    epoch.by_stage[stage].take_over(trained["losses"])
