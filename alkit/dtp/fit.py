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
from alkit.engine.device import place_whole
from alkit.engine.loop import train_epochs
from alkit.engine.plan import Plan, fit_on_ranks, meet
from alkit.engine.record import Record


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of a method's settings."""
    return Settings


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


def model_of(plan: Plan) -> Net:
    """Return the network itself, or what is made of blocks."""
    if isinstance(plan.model, Net):
        plan.refuse("loss", why="the network has its own")
        return plan.model
    return from_blocks(plan.model, loss=plan.loss or cross_entropy, seed=plan.seed)


def fit(plan: Plan) -> Record:
    """Run what was asked: a `Net` of `alkit.dtp.network`, or blocks, for which feedback is made.

    Settings are those of `alkit.dtp.Settings`.
    """
    net = model_of(plan)
    BlockFeedback(net, _settings(plan))  # what is wrong is said before a start
    return fit_on_ranks(_fit, net, plan)


def _fit(net: Net, plan: Plan) -> Record:
    own = _settings(plan)
    plan = replace(plan, epochs=own.epochs, batch_size=own.batch, seed=own.seed)
    place_whole(net, plan.own_device, on_ranks=plan.on_ranks)
    group = meet("ranks" if plan.on_ranks else "single", net)
    length = 0
    if own.schedule == "cosine":
        own, length = _length(plan, own)
    by_steps = {} if own.schedule == "none" else {"scheduler": own.schedule}
    trainer = Trainer(
        net,
        own,
        own.epochs * length,
        workers=plan.workers or 1,
        group=group,
        factory=plan.optimizer,
    )
    same = own.plain() | {"network": str(net.blocks)} | by_steps
    record = train_epochs(trainer, plan, group=group, identity=same)
    learned = {n: torch.cat(parts) for n, parts in trainer.feedback_losses.items()}
    details = Details(
        feedback_losses=learned,
        owners=list(trainer.owners),
        seconds=trainer.seconds(),
        digest=digest(net),
    )
    return replace(record, details=details)


def _settings(plan: Plan) -> Settings:
    changes: dict[str, Any] = {n: getattr(plan, n) for n in ("epochs", "seed", "threads")}
    changes |= {"batch": plan.batch_size, "method": plan.method} | dict(plan.settings)
    if plan.optimizer is not None:
        for name in ("forward_optimizer", "momentum", "weight_decay"):
            if name in plan.settings:
                raise TypeError(f"{name}= is of dtp's own optimisers, and optimizer= is given")
    if plan.one_lr is not None:
        changes["lr"] = plan.one_lr
    if plan.optimizer is not None or plan.scheduler is not None:
        changes.setdefault("schedule", "none")  # what is the user's alone moves the rate
    own: Settings = changed(Settings, changes)
    return own


def _length(plan: Plan, own: Settings) -> tuple[Settings, int]:
    """Return how many batches an epoch has, for a rate that falls over all steps.

    Raises:
        ValueError: that rate was asked for, and the batches have no length.
    """
    batches: Iterable[Any] = plan.batches(plan.data.train, 0)
    try:
        return own, len(batches)  # type: ignore[arg-type]
    except TypeError as error:
        if "schedule" in plan.settings:
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
