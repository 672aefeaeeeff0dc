"""Target propagation behind `alkit.fit`: its trainer in the one loop."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.base.arguments import Brief
from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net, from_blocks
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer
from alkit.engine.device import place_whole
from alkit.engine.loop import train_epochs
from alkit.engine.trainer import Plan, Record, fit_on_ranks, meet


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of the settings of a method."""
    return Settings


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """The part of target propagation in the record, the same on all ranks.

    Attributes:
        feedback_losses: by block, (steps, K_n), of all epochs.
        digest: SHA-256 of all bits of the network.
    """

    feedback_losses: dict[int, Tensor]
    digest: str


def model_of(plan: Plan) -> Net:
    """Return the network itself, or one made of blocks."""
    if isinstance(plan.model, Net):
        plan.refuse("loss", why="the network has its own")
        return plan.model
    return from_blocks(plan.model, loss=plan.loss or cross_entropy, seed=plan.seed)


def fit(plan: Plan) -> Record:
    """Run a plan: with a `Net` of `alkit.dtp.network`, or with blocks, which get feedback."""
    net = model_of(plan)
    BlockFeedback(net, Settings(**plan.settings))  # it raises errors before a start
    return fit_on_ranks(_fit, net, plan)


def _fit(net: Net, plan: Plan) -> Record:
    own = Settings(**plan.settings)
    place_whole(net, plan.own_device)
    group = meet(plan, net)
    trainer = Trainer(net, own, plan, group)
    # all that changes a number: a run that goes on has the same
    same: dict[str, Any] = {"method": plan.method, "threads": plan.threads}
    same |= {name: getattr(own, name) for name in ("beta", "samples", "form", "index")}
    numbers = trainer.feedback
    same |= {name: getattr(numbers, name) for name in ("iterations", "sigma", "feedback_lr")}
    record = train_epochs(trainer, plan, group=group, identity=same)
    learned = {n: torch.cat(parts) for n, parts in trainer.feedback_losses.items()}
    return replace(record, details=Details(learned, digest(net)))


def digest(net: nn.Module) -> str:
    """Return the SHA-256 of all weights, forward and feedback."""
    made = hashlib.sha256()
    for tensor in net.state_dict().values():
        made.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()
