"""Split and federated learning behind `alkit.fit`: its trainer in the one loop."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alkit.data.arguments import changed, given
from alkit.data.given import Loader, in_memory
from alkit.data.labels import are_numbers
from alkit.data.parts import Part
from alkit.engine.caller import CallerState
from alkit.engine.device import devices_named
from alkit.engine.record import Record
from alkit.engine.request import Request, fit_on_ranks, meet
from alkit.models.blocks import sending_one
from alkit.split.choosing import agreed
from alkit.split.deal import deal
from alkit.split.half import check_units, factory_of
from alkit.split.networks import has_batch_norm
from alkit.split.pairs import Pairs
from alkit.split.ranks import RankPairs
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.trainer import Trainer, Whole

NAMES = {name: name for name in ("epochs", "augment", "seed", "threads", "micro", "drop_last")}
NAMES |= {"batch_size": "batch", "cuts": "cuts"}
REFUSED = {  # and why
    "loss": "its tails compare classes by cross-entropy",
    "clip": "no side sees the norm of all gradients",
    "accumulate": "give micro=, or a larger batch_size",
    "compile": "devices run the units as they come",
    "patience": "how many rounds there are is agreed on before the first",
    "evaluate_train": "samples stay with the devices",
    "stop_at_divergence": "a side that meets it ends the run for all",
    "precision": "what crosses the wire has one type, float32",
    "settings": "give epochs=, momentum=, ... by name",
    "scheduler_every": "a round is what all parties share: it steps once an epoch",
}


def model_of(request: Request) -> Whole:
    """Return the blocks as a model that predicts."""
    return Whole(*sending_one(request.model))


def fit(request: Request) -> Record:
    """Run what was asked: blocks, cut once; samples are dealt among `workers` devices, or 2.

    On ranks the first one is the server and the others are the devices. Settings are those of
    `alkit.split.Settings`. The blocks end with the averaged weights.
    """
    for name, why in REFUSED.items():
        request.refuse(name, why=why)
    model = model_of(request)
    _streams(request, _settings(request, model))  # what is wrong is said before a start
    return fit_on_ranks(_fit, model, request) if request.ranks > 1 else _fit(model, request)


def _fit(model: Whole, request: Request) -> Record:
    with CallerState.here().training():  # copies that inference mode makes can't be trained
        return _trained(model, request)


def _trained(model: Whole, request: Request) -> Record:
    group = meet("ranks" if request.on_ranks else "single", model)
    kind: Any = Pairs
    named = [] if (on := request.own_device) is None else devices_named(on)
    if len(named) > 2:
        raise ValueError(f"{len(named)} devices for heads and tail: give one for both, or two")
    model.to(named[-1] if named else None)  # the tail's, where it is tested
    settings = _settings(request, model)
    streams = _streams(request, settings)
    if request.on_ranks:
        settings, channels = agreed(settings, list(model), streams, group, request.checkpoint)
        kind = partial(RankPairs, channels=channels)
    make = factory_of(settings, request.optimizer)
    pairs = kind(list(model), settings, streams, make, named)
    trainer = Trainer(model, pairs, group)
    plan = replace(request.plan, epochs=pairs.rounds, batch_size=settings.batch)
    identity = settings.plain()
    if (epochs := identity.pop("epochs")) != pairs.rounds:
        identity["epochs of a device"] = epochs
    record = request.train(trainer, group, plan=plan, identity=identity)
    model.load_state_dict(group.broadcast(dict(model.state_dict())))  # devices have their heads
    details = trainer.details
    losses = torch.cat([*details.losses.values()]).view(-1, 1, 1)
    return replace(record, losses=losses, details=details)


def _settings(request: Request, model: Whole) -> Settings:
    """Return what holds for this network, and for as many devices as there are to be."""
    devices = request.crew - 1 if request.on_ranks else request.workers or 2
    if request.on_ranks and (not devices or request.workers not in (None, devices)):
        raise ValueError(
            f"workers is {request.workers} and there are {request.crew} ranks: the first one is the"
            " server and each other one a device, so give one rank more than workers"
        )
    changes = request.given_options(**NAMES) | dict(request.changes)
    if request.optimizer is not None and "momentum" in changes:
        raise ValueError(
            "momentum is for the SGD that trains without optimizer=: leave it out, and give it to"
            " your own: lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)"
        )
    if isinstance(request.data.train, Loader) and request.data.train.drops:
        changes["drop_last"] = True  # as the loader says
    if request.one_lr is not None:
        changes["lr"] = request.one_lr
    least = 2 if has_batch_norm(model) else 1
    fixed = {"method": request.method, "devices": devices, "units": len(model), "least": least}
    own: Settings = changed(Settings, fixed | changes)
    if own.rules.shared and request.on_ranks:
        raise ValueError(f"{own.method} has one tail for all devices: it trains in one process")
    if (own.profile or own.events) and not request.on_ranks:
        raise ValueError("profile and events are for ranks: there are no machines to measure")
    if request.plan.scheduler != "constant" and own.aggregate_every != -1:
        raise ValueError("scheduler= goes by epochs: leave aggregate_every at -1, once an epoch")
    cuts = range(len(model) + 1) if own.profile else own.cuts
    check_units(list(model), cuts)
    return own


def _streams(request: Request, settings: Settings) -> list[Stream]:
    """Deal the samples; images of bytes stay such, for devices take means off.

    Raises:
        TypeError: what can't be sent: nested inputs, or targets that are no classes.
        ValueError: labels of no class.
    """
    train, normal = request.data.train, None
    images = isinstance(train, Part)
    x, y = (train.x, train.y) if isinstance(train, Part) else in_memory(train)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{request.method} sends one tensor, and x is {given(x)}: give that tensor alone, or"
            ' method="1f1b"'
        )
    if not are_numbers(y):
        raise TypeError(f"{request.method} compares classes: y is {given(y)}, give class numbers")
    if len(y) and int(y.min()) < 0:
        raise ValueError(
            f"labels are {int(y.min())} to {int(y.max())}: split learning's are 0 to C - 1, and it"
            " trains on all samples: leave those without a class (such as -100) out"
        )
    if isinstance(train, Part) and train.mean is not None and train.std is not None:
        normal = torch.tensor(train.mean), torch.tensor(train.std)
    sizes = [settings.data_size] * settings.devices if settings.data_size else None
    about: dict[str, Any] = {"sizes": sizes, "alpha": settings.alpha, "seed": settings.seed}
    rows = deal(y, settings.devices, settings.partition, **about)
    own = enumerate((x[each], y[each]) for each in rows)
    return [Stream(*each, settings, at, normal, scaled=images) for at, each in own]
