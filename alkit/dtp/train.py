"""Target propagation as one call, in this process or over ranks that it starts."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from alkit.data.arguments import changed
from alkit.data.given import Splits, as_splits
from alkit.data.parts import DataSet
from alkit.dtp.networks import Net
from alkit.dtp.record import Record, digest
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer, feedback_for
from alkit.engine import record
from alkit.engine.caller import CallerState
from alkit.engine.device import Names, place
from alkit.engine.evaluate import Metrics
from alkit.engine.group import Group, of_first
from alkit.engine.launch import launch
from alkit.engine.local import operator_threads
from alkit.engine.loop import Plan, train_epochs
from alkit.engine.rank_device import backend_for, on_own_device, place_whole
from alkit.engine.ranks import merged

__all__ = ["run", "train"]


def train(
    net: Net,
    data: DataSet | Splits,
    method: str | None = None,
    *,
    device: Names | None = None,
    ranks: int = 1,
    group: Group | None = None,
    owners: list[int] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    heartbeat_s: float = 60.0,
    settings: Settings | None = None,
    metrics: Metrics | None = None,
    **changes: Any,
) -> Record:
    """Train a network in place.

    Args:
        data: a data set, or what `alkit.data.given.as_splits` makes of tensors or loaders.
        method: "dtp", "vanilla_dtp", "tp", "ddtp" or "bp"; default that of the settings.
        device: where to train, see `alkit.fit`; None leaves the network where it is.
        ranks: processes to share the feedback loops; the result has the same bits for any number.
        group: ranks that share them, of which this process is one; by default those that it has
            joined.
        owners: rank of each loop; default the longest first, by measured seconds.
        progress: show a bar, in one process.
        heartbeat_s: see `alkit.launch`.
        checkpoint: written after each epoch; training goes on from it if it is there.
        metrics: what else is measured, by name, see `alkit.fit`.
        settings, changes: see `Settings`.
    Raises:
        ValueError, NotFinite: see `run`.
        RankFailed: a rank failed, for one of these reasons or another; names it, and none is left
            running.

    Example:
        >>> import alkit.dtp, alkit.data.datasets
        >>> data = alkit.data.datasets.load("digits", size=16)
        >>> net = alkit.dtp.network("tiny", channels=1)
        >>> record = alkit.dtp.train(net, data, iterations=2, progress=False)
        >>> record.losses.shape
        torch.Size([9])
    """
    if method is not None:
        changes["method"] = method
    settings = changed(settings or Settings, changes)
    path = None if checkpoint is None else Path(checkpoint)
    if ranks == 1:
        group = group or Group()
        place_whole(net, device, on_ranks=group.ranks > 1)
        parts: dict[str, Any] = {"owners": owners, "checkpoint": path, "metrics": metrics}
        return run(net, data, settings, progress=progress, group=group, **parts)
    if settings.method == "bp":
        raise ValueError("bp has no feedback loops to share: set ranks to 1")
    # what is wrong is said before a start, and DDTP's maps are made
    feedback_for(net, settings, place(next(iter(data.train.batches(1)))[0], net))
    job = partial(run, owners=owners, checkpoint=path, progress=False, metrics=metrics)
    options: dict[str, Any] = {"threads": settings.threads, "heartbeat_s": heartbeat_s}
    options |= {"ranks": ranks, "backend": backend_for(device, ranks)}
    made = launch(of_first, on_own_device, device, job, net, data, settings, **options)[0]
    assert isinstance(made, Record)
    net.load_state_dict(made.state)
    return made


def run(
    net: Net,
    data: DataSet | Splits,
    settings: Settings,
    *,
    owners: list[int] | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
    metrics: Metrics | None = None,
    group: Group | None = None,
) -> Record:
    """Train on this process, or as one of the ranks of a group; arguments as of `train`.

    Raises:
        ValueError: settings that don't fit the network, or another run's checkpoint.
        NotFinite: a loss is not.
        RanksDiffer: ranks have different weights or batches.
    """
    own, group = settings, group or Group()
    plan = Plan(epochs=own.epochs, batch_size=own.batch, seed=own.seed, augment=own.augment)
    with operator_threads(own.threads), CallerState.here().training():
        batches: Any = plan.batches(data.train, 0)
        sample, steps = place(next(iter(batches))[0], net), own.epochs * _length(batches, own)
        trainer = Trainer(net, own, sample, steps, owners=owners, group=group)
        trained = train_epochs(
            trainer,
            as_splits(data),
            plan,
            identity=own.plain() | {"network": str(net.blocks)},
            checkpoint=checkpoint,
            progress=progress,
            group=group,
            choose=False,
            metrics=metrics,
        )
        return _record(trainer, trained)


def _length(batches: Any, settings: Settings) -> int:
    """Return how many batches an epoch has, where the rate depends on it."""
    if settings.schedule != "cosine":
        return 0
    try:
        return len(batches)
    except TypeError as error:
        raise ValueError(
            "schedule is 'cosine', which needs the number of batches, and these have no length:"
            " give schedule='none', or a DataLoader of a Dataset"
        ) from error


def _record(trainer: Trainer, trained: record.Record) -> Record:
    """Put together what the ranks have."""
    group, watch, learned = trainer.group, trainer.watch, trainer.feedback_losses
    timeline, state = watch.timeline(), trainer.model.state_dict()
    rows = [
        {"rank": group.rank, "kind": kind, "block": block, "seconds": seconds}
        for (kind, block), seconds in watch.seconds.items()
    ]
    return Record(
        losses=torch.cat(trainer.losses).to(torch.get_default_dtype()),
        feedback_losses={n: torch.cat(parts) for n, parts in learned.items()},
        history=trained.history,
        angles=pd.DataFrame(trainer.angles),
        loads=trainer.loads,
        owners=list(trainer.owners),
        seconds=pd.DataFrame([row for own in group.gather(rows) for row in own]),
        timeline=merged(timeline) if group.ranks > 1 else timeline,
        test_correct=trained.test_correct,
        metrics=trained.metrics,
        state={name: value.detach().to("cpu", copy=True) for name, value in state.items()},
        digest=digest(trainer.model),
    )
