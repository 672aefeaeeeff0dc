"""Elastic freeze training behind `alkit.fit`: its trainer in the one loop."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from alkit.data import tree
from alkit.data.arguments import changed
from alkit.data.given import Loader, Splits, in_memory
from alkit.data.parts import Part
from alkit.elastic.decider import foresee
from alkit.elastic.examples import Examples
from alkit.elastic.features import cache_folder
from alkit.elastic.network import Network
from alkit.elastic.optim import Recipe
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import Trainer
from alkit.elastic.world import World
from alkit.engine.device import place, place_whole, tensors_at
from alkit.engine.loop import train_epochs
from alkit.engine.optimizers import told
from alkit.engine.plan import Plan, fit_on_ranks
from alkit.engine.record import Record
from alkit.engine.reduction import check_reduction, says_reduction


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of a method's settings."""
    return Settings


def model_of(plan: Plan) -> Network:
    """Return the network itself, or what is made of blocks."""
    if isinstance(plan.model, Network):
        plan.refuse("loss", why="the network has its own")
        plan.model.freeze(plan.model.frozen)  # blocks that it was made of may have been freed
        return plan.model
    loss = plan.loss or nn.functional.cross_entropy
    return Network.from_blocks(plan.model, loss, seed=plan.seed)


def fit(plan: Plan) -> Record:
    """Run what was asked: a `Network`, or blocks, of which one is made, with cross-entropy or loss.

    `lr` is the recipe's. Nothing is frozen unless `freeze=` asks for it. With a memory budget, or a
    network's own metric, those of the last epoch are the result. Losses are those of all steps.
    """
    model, network = plan.model, model_of(plan)
    own, data = _settings(plan), _examples(plan.data)
    train: Any = data.train
    foresee(network, train, own)  # what does not fit is said before a start
    _look(network, train)
    if own.freeze != "none" and not network.layers:
        raise ValueError(
            f"freeze is {own.freeze!r}, and of {len(network.units)} blocks with parameters none"
            " lies between the first and the last, which are not frozen: give three or more"
        )
    if own.freeze != "none":
        network.check_ties()
    plan = replace(plan, data=data, threads=own.threads)
    learned = [each for each in network.parameters() if each.requires_grad]
    try:
        with _features_home(own) if plan.ranks > 1 else nullcontext() as home:
            own = replace(own, cache_folder=home) if home else own
            record = fit_on_ranks(partial(_fit, own=own), network, plan)
        if plan.ranks > 1:
            network.freeze(record.details.messages[-1].frozen)
        return record
    finally:
        if network is not model:  # blocks learn on as they came
            for each in learned:
                each.requires_grad_(True)


def _fit(network: Network, plan: Plan, *, own: Settings) -> Record:
    train: Any = plan.data.train
    plan = replace(plan, epochs=own.epochs, batch_size=own.batch, seed=own.seed)
    # rates and freezing of a longer run may be others from the first step on
    longer = own.steady and own.freeze == "none"
    whole = {} if longer else {"scheduler": "of the whole run"}
    place_whole(network, plan.own_device, on_ranks=own.executor == "ranks")
    world = World(own.executor)
    if own.executor == "ranks":
        world.check_size(devices=own.devices)
    trainer = Trainer(network, train, own, world)
    try:
        trainer.pipeline.features.begin()
        # a rank that has no room keeps no weights aside; of a metric of one's own none is best
        choose = plan.data.validation is not None and not (own.memory_budget or network.metric)
        same = own.plain() | whole
        if callable(own.recipe.optimizer):
            same |= told(trainer.pipeline.optimizer.inner)
        record = train_epochs(trainer, plan, group=world, identity=same, choose=choose)
        trainer.pipeline.gather()
    finally:
        trainer.pipeline.close()
    losses = torch.tensor(trainer.now.losses, dtype=torch.float64).view(-1, 1, 1)
    return replace(record, losses=losses, details=trainer.details())


@torch.no_grad()
def _look(network: Network, train: Examples) -> None:
    """Compare one sample with its label: what the loss can't take is said before the first step."""
    x, y = place((train.inputs(torch.arange(1)), train.y[:1]), network)
    scores = network.predict(x)
    at = tensors_at(network.loss) or next(tree.tensors(scores)).device  # a run may have moved them
    try:
        network.loss(*tree.to_device((scores, y), at))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"the network's loss does not take labels {tuple(y.shape)} of {y.dtype}: {error}"
        ) from error


def _settings(plan: Plan) -> Settings:
    changes: dict[str, Any] = {n: getattr(plan, n) for n in ("epochs", "seed", "threads")}
    changes |= {"batch": plan.batch_size} | dict(plan.settings)
    changes.setdefault("freeze", "none")  # an untrained layer frozen early never learns
    if plan.on_ranks:
        plan.refuse("workers", why="with ranks, a rank is a device")
        given = changes.get("devices", 1)
        changes |= {"executor": "ranks", "devices": plan.crew if given == 1 else given}
    elif plan.workers is not None:
        changes["devices"] = plan.workers
    if isinstance(train := plan.data.train, Loader) and train.drops:
        changes["drop_last"] = True  # as the loader says
    if changes.get("devices", 1) == 1:
        changes.setdefault("micro", 1)  # nobody waits for a part of a batch
    own: Settings = changed(Settings, changes | {"recipe": _recipe(plan)})
    if plan.scheduler is not None and not own.steady:
        raise ValueError(
            "scheduler= is given, and the recipe moves the rates, too: give a Recipe with warmup=0"
            ' and shape="constant"'
        )
    if plan.loss is not None and not says_reduction(plan.loss):
        if max(own.devices, own.micro) > 1:
            check_reduction(plan.loss)
        own = replace(own, micro=1)  # uncut, it may be a mean or a sum
    return own


def _recipe(plan: Plan) -> Recipe:
    """Return what updates the weights, with what the call says of it."""
    recipe = plan.settings.get("recipe", Recipe())
    if "recipe" not in plan.settings and (plan.scheduler or plan.optimizer):
        recipe = replace(recipe, warmup=0.0, shape="constant")  # what is the user's moves the rate
    if plan.optimizer is not None:
        for name in ("momentum", "weight_decay"):
            if (value := getattr(recipe, name)) != getattr(Recipe, name):
                raise ValueError(f"{name} is {value}, and optimizer= makes its own: give it there")
        clip = recipe.clip if "recipe" in plan.settings else None
        recipe = replace(recipe, optimizer=plan.optimizer, clip=clip)
    known = {"lr": plan.one_lr, "clip": plan.settings.get("clip")}
    said = {name: own for name, own in known.items() if own is not None}
    return replace(recipe, **said) if said else recipe


def _examples(data: Splits) -> Splits:
    """Return the training part as samples in memory, and texts with their masks."""
    measured = [
        _part(part) if isinstance(part, Part) else part for part in (data.validation, data.test)
    ]
    return replace(data, train=_part(data.train), validation=measured[0], test=measured[1])


def _part(part: Any) -> Examples:
    if isinstance(part, Examples):
        return part
    x, y = in_memory(part)
    if isinstance(part, Part) and part.is_text:
        x = x, x != part.pad
    return Examples(x, y)


def _features_home(settings: Settings) -> AbstractContextManager[str | None]:
    """Give the ranks a folder that goes away with this call, even if they are killed."""
    try:
        return cache_folder(settings) if settings.cache else nullcontext()
    except OSError:
        return nullcontext()  # rank 0 will meet the same, and say so
