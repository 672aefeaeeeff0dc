"""Elastic freeze training behind `alkit.fit`: its trainer in the one loop."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
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
from alkit.engine.device import place, tensors_at
from alkit.engine.optimizers import told
from alkit.engine.rank_device import place_whole
from alkit.engine.record import Record
from alkit.engine.reduction import check_reduction, says_reduction
from alkit.engine.request import Request, fit_on_ranks

NAMES = {name: name for name in ("epochs", "seed", "threads", "micro", "executor")}
NAMES |= {"batch_size": "batch", "workers": "devices"}
NAMES |= {"precision": "precision", "drop_last": "drop_last"}
REFUSED = ("cuts", "augment", "accumulate", "compile")


def model_of(request: Request) -> Network:
    """Return the network itself, or what is made of blocks."""
    if isinstance(request.model, Network):
        request.refuse("loss", why="the network has its own")
        request.model.freeze(request.model.frozen)  # blocks that it was made of may have been freed
        return request.model
    loss = request.loss or nn.functional.cross_entropy
    return Network.from_blocks(request.model, loss, seed=request.plan.seed)


def fit(request: Request) -> Record:
    """Run what was asked: a `Network`, or blocks, of which one is made, with cross-entropy or loss.

    Settings are those of `alkit.elastic.Settings`; `lr` is its recipe's. Nothing is frozen unless
    `freeze=` asks for it ("schedule", "gradnorm", ...). With a memory budget, or a network's own
    metric, no weights are kept aside, and those of the last epoch are the result. Losses are those
    of all steps.
    """
    model, network = request.model, model_of(request)
    request.refuse(*REFUSED, why="see alkit.elastic.Settings and its recipe for its own")
    own, data = _settings(request), _examples(request.data)
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
    request = replace(request, settings=own, changes={}, data=data, threads=own.threads)
    learned = [each for each in network.parameters() if each.requires_grad]
    try:
        if request.ranks == 1:
            return _fit(network, request)
        with _features_home(own) as home:
            if home:
                request = replace(request, settings=replace(own, cache_folder=home))
            record = fit_on_ranks(_fit, network, request)
        network.freeze(record.details.messages[-1].frozen)
        return record
    finally:
        if network is not model:  # blocks learn on as they came
            for each in learned:
                each.requires_grad_(True)


def _fit(network: Network, request: Request) -> Record:
    own, data = request.settings, request.data
    train: Any = data.train
    plan = replace(
        request.plan,
        epochs=own.epochs,
        batch_size=own.batch,
        seed=own.seed,
        precision=own.precision,
        drop_last=own.drop_last,
        clip=None,
    )
    # rates and freezing of a longer run may be others from the first step on
    longer = own.steady and own.freeze == "none"
    whole = {} if longer else {"scheduler": "of the whole run"}
    place_whole(network, request.own_device, on_ranks=own.executor == "ranks")
    world = World(own.executor)
    if own.executor == "ranks":
        world.check_size(devices=own.devices)
    trainer = Trainer(network, train, own, world)
    try:
        trainer.pipeline.features.begin()
        # a rank that has no room keeps no weights aside; of a metric of one's own none is best
        choose = data.validation is not None and not (own.memory_budget or network.metric)
        same = own.plain() | whole
        if callable(own.recipe.optimizer):
            same |= told(trainer.pipeline.optimizer.inner)
        record = request.train(trainer, world, plan=plan, identity=same, choose=choose)
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


def _settings(request: Request) -> Settings:
    if request.on_ranks:
        request.refuse("workers", why="with ranks, a rank is a device")
    changes = request.given_options(**NAMES) | dict(request.changes)
    if request.settings is None:
        changes.setdefault("freeze", "none")  # an untrained layer frozen early never learns
    if request.on_ranks:
        changes |= {"executor": "ranks"}
        changes.setdefault("devices", request.crew)
    if isinstance(train := request.data.train, Loader) and train.drops:
        changes["drop_last"] = True  # as the loader says
    if request.settings is None and changes.get("devices", 1) == 1:
        changes.setdefault("micro", 1)  # nobody waits for a part of a batch
    known = {"lr": request.one_lr, "clip": request.plan.clip}
    given = {name: value for name, value in known.items() if value is not None}
    recipe = changes.get("recipe", (request.settings or Settings()).recipe)
    by_user = "scheduler" in request.said or request.optimizer is not None
    if by_user and "recipe" not in changes and request.settings is None:
        recipe = replace(recipe, warmup=0.0, shape="constant")  # what is the user's moves the rate
    if request.optimizer is not None:
        for name in ("momentum", "weight_decay"):
            if (value := getattr(recipe, name)) != getattr(Recipe, name):
                raise ValueError(f"{name} is {value}, and optimizer= makes its own: give it there")
        clip = recipe.clip if "recipe" in changes or request.settings else None
        recipe = replace(recipe, optimizer=request.optimizer, clip=clip)
    changes["recipe"] = replace(recipe, **given) if given else recipe
    own: Settings = changed(request.settings or Settings, changes)
    if "scheduler" in request.said and not own.steady:
        raise ValueError(
            "scheduler= is given, and the recipe moves the rates, too: give a Recipe with warmup=0"
            ' and shape="constant"'
        )
    if request.micro > 1 and own.devices == 1:
        raise ValueError(
            f"micro is {request.micro}, and one device has no pipeline to cut batches for: leave it"
            " out, or give workers=2 or ranks=2"
        )
    if request.loss is not None and not says_reduction(request.loss):
        if max(own.devices, own.micro) > 1:
            check_reduction(request.loss)
        own = replace(own, micro=1)  # uncut, it may be a mean or a sum
    return own


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
