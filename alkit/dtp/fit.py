"""Target propagation behind `alkit.fit`: its trainer in the one loop."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.data.arguments import Brief, changed
from alkit.dtp.convert import from_blocks
from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.networks import Net
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer
from alkit.engine.loop import Plan
from alkit.engine.rank_device import place_whole
from alkit.engine.record import Record
from alkit.engine.request import Request, fit_on_ranks, meet

# what its own settings call these options
NAMES = {name: name for name in ("epochs", "augment", "seed", "threads", "clip")}
NAMES |= {"batch_size": "batch"}


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """What target propagation leaves beside the record, the same on all ranks.

    Attributes:
        feedback_losses: by block, (steps, K_n), of all epochs.
        owners: each loop's rank.
        seconds: by rank, kind and block, of all steps of this call.
        digest: SHA-256 of all bits of the network.
    """

    feedback_losses: dict[int, Tensor]
    owners: list[int]
    seconds: pd.DataFrame
    digest: str


def model_of(request: Request) -> Net:
    """Return the network itself, or what is made of blocks."""
    if isinstance(request.model, Net):
        request.refuse("loss", why="the network has its own")
        return request.model
    return from_blocks(request.model, loss=request.loss or cross_entropy, seed=request.plan.seed)


def fit(request: Request) -> Record:
    """Run what was asked: a `Net` of `alkit.dtp.network`, or blocks, for which feedback is made.

    Settings are those of `alkit.dtp.Settings`.
    """
    words = ("cuts", "micro", "accumulate", "compile")
    request.refuse(*words, why="see alkit.dtp.Settings for its own")
    request.refuse("precision", why="feedback's gradients are float32, narrower ones are untried")
    net = model_of(request)
    if request.ranks == 1:
        return _fit(net, request)
    BlockFeedback(net, _settings(request))  # what is wrong is said before a start
    return fit_on_ranks(_fit, net, request)


def _fit(net: Net, request: Request) -> Record:
    own = _settings(request)
    plan = replace(
        request.plan,
        epochs=own.epochs,
        batch_size=own.batch,
        seed=own.seed,
        augment=own.augment,
        clip=None,
    )
    place_whole(net, request.own_device, on_ranks=request.on_ranks)
    group = meet("ranks" if request.on_ranks else "single", net)
    length = 0
    if own.schedule == "cosine":
        own, length = _length(plan, own, request)
    by_steps = {} if own.schedule == "none" else {"scheduler": own.schedule}
    workers = request.workers or (len(net) if request.executor == "threads" else 1)
    trainer = Trainer(
        net,
        own,
        own.epochs * length,
        workers=workers,
        group=group,
        factory=request.optimizer,
    )
    same = own.plain() | {"network": str(net.blocks)} | by_steps
    record = request.train(trainer, group, plan=plan, identity=same)
    learned = {n: torch.cat(parts) for n, parts in trainer.feedback_losses.items()}
    details = Details(
        feedback_losses=learned,
        owners=list(trainer.owners),
        seconds=trainer.seconds(),
        digest=digest(net),
    )
    return replace(record, details=details)


def _settings(request: Request) -> Settings:
    if request.optimizer is not None:
        for name in ("optimizer", "momentum", "weight_decay"):
            if name in request.changes:
                raise TypeError(f"{name}= is of dtp's own optimisers, and optimizer= is given")
    changes = request.given_options(**NAMES) | dict(request.changes) | {"method": request.method}
    if request.one_lr is not None:
        changes["lr"] = request.one_lr
    if request.optimizer is not None or "scheduler" in request.said:
        changes.setdefault("schedule", "none")  # what is the user's alone moves the rate
    return changed(request.settings or Settings, changes)


def _length(plan: Plan, own: Settings, request: Request) -> tuple[Settings, int]:
    """Return how many batches an epoch has, for a rate that falls over all steps.

    Raises:
        ValueError: that rate was asked for, and the batches have no length.
    """
    batches: Iterable[Any] = plan.batches(request.data.train, 0)
    try:
        return own, len(batches)  # type: ignore[arg-type]
    except TypeError as error:
        if "schedule" in request.changes or request.settings is not None:
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
