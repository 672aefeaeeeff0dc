"""Split and federated learning behind `alkit.fit`: its trainer in the one loop."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from alkit.base.arguments import given
from alkit.data.given import Loader, in_memory
from alkit.data.labels import are_numbers
from alkit.data.parts import Part
from alkit.engine.caller import CallerState
from alkit.engine.device import devices_named
from alkit.engine.loop import train_epochs
from alkit.engine.rates import EachBatch
from alkit.engine.trainer import Plan, Record, fit_on_ranks, meet
from alkit.models.blocks import sending_one
from alkit.split.half import check_units
from alkit.split.networks import has_batch_norm
from alkit.split.pairs import Pairs
from alkit.split.ranks import RankPairs, agreed
from alkit.split.settings import Settings
from alkit.split.stream import Stream, deal
from alkit.split.trainer import Trainer, Whole


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of the settings of a method."""
    return Settings


def model_of(plan: Plan) -> Whole:
    """Return the blocks as a model that predicts."""
    return Whole(*sending_one(plan.model))


def fit(plan: Plan) -> Record:
    """Run a plan with blocks, cut once; `workers` devices, or 2, share the samples.

    On ranks the first one is the server and the others are the devices.
    """
    plan.refuse("loss", why="its tails compare classes by cross-entropy")
    model = model_of(plan)
    _streams(plan, _settings(plan, model))  # it raises errors before a start
    with CallerState.here().training():  # copies that inference mode makes can't be trained
        return fit_on_ranks(_fit, model, plan)


def _fit(model: Whole, plan: Plan) -> Record:
    group = meet(plan, model)
    named = [] if (on := plan.own_device) is None else devices_named(on)
    if len(named) > 2:
        raise ValueError(f"{len(named)} devices for heads and tail: give one for both, or two")
    model.to(named[-1] if named else None)  # that of the tail, where it is tested
    settings, kind = _settings(plan, model), Pairs
    streams = _streams(plan, settings)
    if plan.on_ranks:
        settings, channels = agreed(settings, list(model), streams, plan.checkpoint)
        kind = partial(RankPairs, channels=channels)  # type: ignore[assignment]
    optimizer = partial(cast("Any", plan.optimizer), lr=settings.lr)
    pairs = kind(list(model), settings, streams, optimizer, named)
    trainer, identity = Trainer(model, pairs, group), settings.plain()
    if (epochs := identity.pop("epochs")) != pairs.rounds:
        identity["epochs of a device"] = epochs
    rounds = replace(plan, epochs=pairs.rounds, batch_size=settings.batch)
    record = train_epochs(trainer, rounds, group=group, identity=identity)
    model.load_state_dict(group.broadcast(dict(model.state_dict())))  # devices have their heads
    details = trainer.details
    losses = torch.cat([*details.losses.values()]).view(-1, 1, 1)
    return replace(record, losses=losses, details=details)


def _settings(plan: Plan, model: Whole) -> Settings:
    """Return the settings for this network and for the number of devices."""
    devices = plan.crew - 1 if plan.on_ranks else plan.workers or 2
    if plan.on_ranks and (not devices or plan.workers not in (None, devices)):
        said = f"workers is {plan.workers} and there are {plan.crew} ranks, one the server"
        raise ValueError(f"{said}: give one rank more than workers")
    changes: dict[str, Any] = {n: getattr(plan, n) for n in ("epochs", "seed", "threads")}
    changes |= {"batch": plan.batch_size} | dict(plan.settings)
    if isinstance(plan.data.train, Loader) and plan.data.train.drops:
        changes["drop_last"] = True  # as the loader says
    if plan.one_lr is not None:
        changes["lr"] = plan.one_lr
    fixed: dict[str, Any] = {"least": 2 if has_batch_norm(model) else 1, "units": len(model)}
    settings = Settings(**fixed | {"method": plan.method, "devices": devices} | changes)
    if (settings.profile or settings.events) and not plan.on_ranks:
        raise ValueError("profile and events are for ranks: there are no machines to measure")
    by_batch = isinstance(plan.scheduler, EachBatch)
    if by_batch or (plan.scheduler is not None and settings.aggregate_every != -1):
        raise ValueError(
            "scheduler= goes by epochs, because all parties share rounds: give no each_batch, and"
            " leave aggregate_every at -1, once an epoch"
        )
    check_units(list(model), range(len(model) + 1) if settings.profile else settings.cuts)
    return settings


def _streams(plan: Plan, settings: Settings) -> list[Stream]:
    """Deal the samples; images of bytes stay such until they are in a batch."""
    train = plan.data.train
    part = train if isinstance(train, Part) else None
    x, y = in_memory(train) if part is None else (part.x, part.y)
    if not isinstance(x, Tensor):
        said = f"{plan.method} sends one tensor, and x is {given(x)}"
        raise TypeError(f'{said}: give that tensor alone, or method="1f1b"')
    if not are_numbers(y):
        raise TypeError(f"{plan.method} compares classes: y is {given(y)}, give class numbers")
    if len(y) and int(y.min()) < 0:
        said = f"labels are {int(y.min())} to {int(y.max())}: split learning's are 0 to C - 1"
        raise ValueError(f"{said}, leave samples without a class (such as -100) out")
    rows = deal(len(y), settings.devices, settings.data_size, seed=settings.seed)
    return [Stream(x[each], y[each], settings, at, part) for at, each in enumerate(rows)]
