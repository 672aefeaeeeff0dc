"""Elastic freeze training behind `alkit.fit`: its trainer in the one loop."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from alkit.data.given import Loader, in_memory
from alkit.data.parts import DataSet, Pairs, Part
from alkit.elastic.layout import Planner
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import Details, Trainer
from alkit.elastic.units import Units, World
from alkit.engine import checkpoint
from alkit.engine.device import place_whole
from alkit.engine.loop import train_epochs
from alkit.engine.losses import check_reduction
from alkit.engine.optimizers import adam, check_untied, made
from alkit.engine.trainer import Plan, Record, fit_on_ranks


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of the settings of a method."""
    return Settings


def model_of(plan: Plan) -> Network:
    """Return the network itself, or one made of blocks."""
    if isinstance(plan.model, Network):
        plan.refuse("loss", why="the network has its own")
        plan.model.freeze(plan.model.frozen)  # blocks that it was made of may have been freed
        return plan.model
    loss = plan.loss or nn.functional.cross_entropy
    return Network.from_blocks(plan.model, loss, seed=plan.seed)


def fit(plan: Plan) -> Record:
    """Run a plan: with a `Network`, or one made of blocks, with cross-entropy or the given loss.

    Losses are those of all steps.
    """
    model, network = plan.model, model_of(plan)
    train, settings = plan.data.train, _settings(plan)
    drop_last = isinstance(train, Loader) and train.drops
    plan = replace(plan, data=_in_memory(plan.data))
    foresee(network, plan, settings)
    if settings.freeze != "none":
        network.check_freezing()
    learned = [each for each in network.parameters() if each.requires_grad]
    try:
        run = partial(_fit, settings=settings, drop_last=drop_last)
        record = fit_on_ranks(run, network, plan)
        network.freeze(record.details.layouts[-1].frozen)  # ranks may have trained copies
        return record
    finally:
        if network is not model:  # blocks learn on as they came
            for each in learned:
                each.requires_grad_(True)


def foresee(network: Network, plan: Plan, settings: Settings) -> Planner:
    """Make every layout that freezing may come to, so that a wrong cut raises early."""
    devices = plan.crew if plan.on_ranks else plan.workers or 1
    planner = network.planner(settings, devices=devices, batch=plan.batch_size)
    most, layout = network.frozen, None
    if settings.freeze != "none" and plan.epochs > 1:
        most = network.layers
    for frozen in range(network.frozen, most + 1):
        layout = planner.at(frozen, layout)
        check_untied("stages", [network.units[slice(*own)] for own in layout.bounds])
    return planner


def _fit(network: Network, plan: Plan, *, settings: Settings, drop_last: bool) -> Record:
    place_whole(network, plan.own_device)
    world = World()
    advice = "every rank makes the model itself, so begin with torch.manual_seed(0) on all"
    world.check_equal(network.state_dict(), when="before the first step ", advice=advice)
    planner = foresee(network, plan, settings)
    rate: dict[str, Any] = {} if plan.lr is None else {"lr": plan.one_lr}
    active = network.units[network.first() :].named_parameters()
    optimizer = made(plan.optimizer or adam, active, **rate)
    if optimizer is None:
        raise ValueError("there is nothing to train: no parameter of the network has requires_grad")
    data: Any = plan.data.train
    trainer = Trainer(
        units=Units(network, optimizer, world),
        data=data,
        settings=settings,
        planner=planner,
        epochs=plan.epochs,
        threads=plan.threads,
        drop_last=drop_last,
    )
    same: dict[str, Any] = {"drop_last": drop_last, "growing": settings.growing}
    same |= {"clip": settings.clip, "freeze": "none", "optimizer": type(optimizer).__name__}
    same |= checkpoint.marks({"optimizers": {"units": optimizer.state_dict()}}, {}, "")
    if settings.freeze != "none":  # a longer run may freeze otherwise from the first step on
        same["freeze"] = "a function" if callable(settings.freeze) else settings.freeze
        same |= {"alpha": settings.alpha, "epochs that it freezes in": plan.epochs}
    try:
        record = train_epochs(trainer, plan, group=world, identity=same)
        trainer.gather()
    finally:
        world.close()
    details = Details(trainer.layouts, trainer.beginnings)
    losses = torch.tensor(trainer.losses, dtype=torch.float64).view(-1, 1, 1)
    return replace(record, losses=losses, details=details)


def _settings(plan: Plan) -> Settings:
    settings = Settings(**plan.settings)
    if plan.on_ranks:
        plan.refuse("workers", why="with ranks, a rank is a device")
    uncut = max(plan.crew, plan.workers or 1, settings.micro) == 1
    if plan.loss is not None and not uncut:
        check_reduction(plan.loss)
    return settings


def _in_memory(data: DataSet) -> DataSet:
    """Return the training part as samples in memory, and texts with their masks."""
    parts = [_pairs(p) if isinstance(p, Part) else p for p in (data.validation, data.test)]
    return replace(data, train=_pairs(data.train), validation=parts[0], test=parts[1])


def _pairs(part: Any) -> Pairs:
    x, y = in_memory(part)
    if isinstance(part, Part) and part.is_text:
        x = x, x != 0
    return Pairs(x, y)
