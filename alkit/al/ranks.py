"""What an epoch over ranks needs beside the engine: one cut for all, and what each has trained."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from alkit.al.layers import AL
from alkit.al.stages import Epoch
from alkit.engine.group import Group
from alkit.engine.ranks import merged, owners, run_ranks
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline

__all__ = ["execute_on_ranks"]


def execute_on_ranks(
    epoch: Epoch, schedule: Schedule, batches: Iterable[Any], group: Group, *, threads: int
) -> Timeline:
    """Run this rank's part, then give every rank what the others have trained.

    Returns:
        The timeline of all ranks.
    """
    timeline = run_ranks(schedule, epoch.stages, batches, threads=threads)
    epoch.finish()
    group.share(owners(schedule), partial(_trained, epoch), partial(_take_over, epoch))
    return merged(timeline)


def _trained(epoch: Epoch, stage: int) -> dict[str, Any]:
    """Return all that training this layer has changed."""
    layer = epoch.model[stage]
    assert isinstance(layer, AL)
    optimizers = {
        name: None if optimizer is None else optimizer.state_dict()
        for name, optimizer in layer.optimizers.items()
    }
    return {
        "weights": dict(layer.state_dict()),
        "optimizers": optimizers,
        "losses": epoch.by_stage[stage].rows(),
    }


def _take_over(epoch: Epoch, stage: int, trained: dict[str, Any]) -> None:
    layer = epoch.model[stage]
    assert isinstance(layer, AL)
    layer.load_state_dict(trained["weights"])
    for name, optimizer in layer.optimizers.items():
        if optimizer is not None:
            optimizer.load_state_dict(trained["optimizers"][name])
    epoch.by_stage[stage].take_over(trained["losses"])
