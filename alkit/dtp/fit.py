"""Target propagation behind `alkit.fit`: its trainer in the one loop."""

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.data.arguments import Brief, changed
from alkit.data.given import first_samples
from alkit.dtp.convert import from_blocks
from alkit.dtp.networks import Net
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer, feedback_for
from alkit.engine.asked import Asked, fit_on_ranks, meet
from alkit.engine.device import place
from alkit.engine.loop import Plan, train_epochs
from alkit.engine.rank_device import place_whole
from alkit.engine.record import Record

__all__ = ["Details", "digest", "fit", "model_of"]

# what its own settings call these options
NAMES = {name: name for name in ("epochs", "augment", "seed", "threads", "clip")}
NAMES |= {"batch_size": "batch"}


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """What target propagation leaves beside the record, the same on all ranks.

    Attributes:
        feedback_losses: by block, (steps, K_n), of all epochs.
        angles: rows of `alkit.dtp.compare`, by epoch.
        loads: seconds of each loop for a batch, as assigned by; owners: each loop's rank.
        seconds: by rank, kind and block, of all steps of this call.
        digest: SHA-256 of all bits of the network.
    """

    feedback_losses: dict[int, Tensor]
    angles: pd.DataFrame
    loads: list[float]
    owners: list[int]
    seconds: pd.DataFrame
    digest: str


def model_of(asked: Asked) -> Net:
    """Return the network itself, or what is made of blocks."""
    if isinstance(asked.model, Net):
        asked.refuse("loss", why="the network has its own")
        return asked.model
    return from_blocks(asked.model, loss=asked.loss or cross_entropy, seed=asked.plan.seed)


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Net` of `alkit.dtp.network`, or blocks, for which feedback is made.

    Settings are those of `alkit.dtp.Settings`.
    """
    words = ("cuts", "micro", "exits", "accumulate", "compile")
    asked.refuse(*words, why="see alkit.dtp.Settings for its own")
    asked.refuse("precision", why="feedback's gradients are float32, narrower ones are untried")
    if asked.on_ranks and asked.method in ("bp", "ddtp"):
        why = {"bp": "bp has no feedback loops", "ddtp": "ddtp's loops need all later blocks"}
        raise ValueError(f"{why[asked.method]}, so ranks can't share them: give workers=")
    net = model_of(asked)
    if asked.ranks == 1:
        return _fit(net, asked)
    # what is wrong is said before a start, and DDTP's maps are made
    feedback_for(net, _settings(asked), place(first_samples(asked.data.train, 1)[0], net))
    return fit_on_ranks(_fit, net, asked)


def _fit(net: Net, asked: Asked) -> Record:
    own = _settings(asked)
    plan = replace(
        asked.plan,
        epochs=own.epochs,
        batch_size=own.batch,
        seed=own.seed,
        augment=own.augment,
        clip=None,
    )
    place_whole(net, asked.own_device, on_ranks=asked.on_ranks)
    group = meet("ranks" if asked.on_ranks else "single", net)
    sample, length = place(first_samples(asked.data.train, own.batch)[0], net), 0
    if own.schedule == "cosine":
        own, length = _length(plan, own, asked)
    by_steps = {} if own.schedule == "none" else {"scheduler": own.schedule}
    workers = asked.workers or (len(net) if asked.executor == "threads" else 1)
    trainer = Trainer(
        net,
        own,
        sample,
        own.epochs * length,
        workers=workers,
        group=group,
        factory=asked.optimizer,
    )
    record = train_epochs(
        trainer,
        asked.data,
        plan,
        identity=own.plain() | {"network": str(net.blocks)} | by_steps,
        checkpoint=asked.checkpoint,
        anyway=asked.resume == "anyway",
        tensorboard=asked.tensorboard,
        progress=asked.progress,
        group=group,
        metrics=asked.metrics,
    )
    learned = {n: torch.cat(parts) for n, parts in trainer.feedback_losses.items()}
    details = Details(
        feedback_losses=learned,
        angles=pd.DataFrame(trainer.angles),
        loads=trainer.loads,
        owners=list(trainer.owners),
        seconds=trainer.seconds(),
        digest=digest(net),
    )
    return replace(record, details=details)


def _settings(asked: Asked) -> Settings:
    changes = asked.given_options(**NAMES) | dict(asked.changes) | {"method": asked.method}
    if asked.one_lr is not None:
        changes["lr"] = asked.one_lr
    if asked.optimizer is not None or asked.plan.scheduler != "constant":
        changes.setdefault("schedule", "none")  # what is the user's alone moves the rate
    return changed(asked.settings or Settings, changes)


def _length(plan: Plan, own: Settings, asked: Asked) -> tuple[Settings, int]:
    """Return how many batches an epoch has, for a rate that falls over all steps.

    Raises:
        ValueError: that rate was asked for, and the batches have no length.
    """
    batches: Iterable[Any] = plan.batches(asked.data.train, 0)
    try:
        return own, len(batches)  # type: ignore[arg-type]
    except TypeError as error:
        if "schedule" in asked.changes or asked.settings is not None:
            raise ValueError(
                "schedule is 'cosine', which needs the number of batches, and these have no length:"
                " give schedule='none', or a DataLoader of a Dataset"
            ) from error
    return replace(own, schedule="none"), 0


def digest(net: nn.Module) -> str:
    """Return the SHA-256 of all weights, forward and feedback."""
    made = hashlib.sha256()
    for tensor in net.state_dict().values():
        made.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()


def train(net: Net, data: Any, method: str = "dtp", **options: Any) -> Record:
    """Call `alkit.fit`: this name goes with the next release."""
    warnings.warn("alkit.dtp.train is alkit.fit(net, data, method=...)", FutureWarning, 2)
    made: Record = import_module("alkit.records.fit").fit(net, data, method=method, **options)
    return made
