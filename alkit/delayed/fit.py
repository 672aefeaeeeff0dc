"""Delayed gradients behind `alkit.fit`: the pipeline is emptied after every epoch."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.arguments import as_plain
from alkit.delayed.methods import METHODS
from alkit.delayed.modules import Pipeline, even_cuts
from alkit.delayed.schedules import SHARED, read
from alkit.delayed.settings import Settings
from alkit.delayed.train import Trained, train_epoch
from alkit.engine import trainer
from alkit.engine.costs import backprop_costs, backprop_stages, balanced_cuts
from alkit.engine.device import devices_named, place, spread
from alkit.engine.loop import train_epochs
from alkit.engine.messages import Group
from alkit.engine.optimizers import adam
from alkit.engine.random import random_from
from alkit.engine.trainer import Plan, Record, fit_on_ranks, meet
from alkit.models.blocks import as_blocks

# settings that change the learned network: a run that goes on has the same
LEARNED = ("clip", "correction", "replay_noise")


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of the settings of a method."""
    return Settings


@dataclass
class Trainer(trainer.Trainer):
    """A pipeline, and the options of `train_epoch`, its method first."""

    model: Pipeline
    options: Mapping[str, Any]

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of the pipeline."""
        return self.model.loss_fn

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""
        return train_epoch(self.model, batches, **self.options)


def fit(plan: Plan) -> Record:
    """Run a plan: with a `Pipeline` as it is, or with blocks, which are cut.

    Without cuts there are as many modules as workers, or ranks, or two; twice as many where workers
    have several.
    """
    return fit_on_ranks(_fit, model_of(plan), plan)


def _fit(pipeline: Pipeline, plan: Plan) -> Record:
    own = Settings(**plan.settings)
    if plan.workers is not None and plan.workers > len(pipeline):
        plan.refuse("workers", why=f"cuts make {len(pipeline)} modules, a worker each at most")
    names = ("method", "executor", "workers", "threads", "seed")
    options = {**plan.settings, "cuts": None, **{name: getattr(plan, name) for name in names}}
    trainer = Trainer(spread(pipeline, plan.own_device), options)
    same = {"method": plan.method, "micro": own.micro, "threads": plan.threads}
    same |= {name: str(value) for name, value in plan.settings.items() if name in LEARNED}
    if own.schedule is not None:
        same["schedule"] = str(getattr(own.schedule, "name", own.schedule))
    return train_epochs(trainer, plan, group=meet(plan, pipeline), identity=same)


def model_of(plan: Plan) -> Pipeline:
    """Return the pipeline itself, or one made of blocks."""
    own = Settings(**plan.settings)
    own.check(METHODS[plan.method])
    if isinstance(plan.model, Pipeline):
        plan.refuse("loss", "optimizer", "lr", why="the pipeline has its own")
        if own.cuts is not None:
            raise TypeError("cuts= is for blocks: the pipeline has its own")
        return plan.model
    blocks = as_blocks(plan.model)
    modules = plan.workers or (plan.crew if plan.on_ranks else min(2, len(blocks)))
    if own.schedule is not None:
        modules = read(own.schedule).stages
    elif plan.method in SHARED:
        chosen = plan.workers or plan.on_ranks
        modules = 2 * (modules if chosen else max(1, min(modules, len(blocks) // 2)))
    cuts = _cuts(own.cuts, blocks, plan, modules)
    optimizer: Callable[..., torch.optim.Optimizer] = plan.optimizer or adam
    if plan.one_lr is not None:
        optimizer = partial(optimizer, lr=plan.one_lr)
    return Pipeline(blocks, plan.loss or F.cross_entropy, cuts, optimizer)


def _cuts(
    cuts: Sequence[int] | str | None, blocks: list[nn.Module], plan: Plan, modules: int
) -> list[int]:
    if cuts is None:
        return even_cuts(len(blocks), modules)
    if not isinstance(cuts, str):
        return [as_plain(cut) for cut in cuts]
    if cuts != "balanced":
        raise ValueError(f"cuts is {cuts!r}: give block numbers, or 'balanced'")
    if plan.checkpoint is not None:
        raise ValueError(
            "cuts is 'balanced' and checkpoint is given: a run that goes on needs the cuts that it"
            " had, give those of a first call, list(record.model.cuts)"
        )
    return Group().from_first(_balanced, blocks, plan, modules)


def _balanced(blocks: list[nn.Module], plan: Plan, modules: int) -> list[int]:
    """Return cuts by the seconds of a copy and the first batch: nothing is trained."""
    own = copy.deepcopy(nn.ModuleList(blocks))
    if plan.own_device is not None:
        own.to(devices_named(plan.own_device)[0])

    batch = place(plan.sample, own)
    with random_from("costs"):
        stages = backprop_stages(own, plan.loss or F.cross_entropy, torch.optim.SGD)
        costs = backprop_costs(stages, [batch] * 6, warmup=1, threads=plan.threads)
    return balanced_cuts([*map(sum, costs)], modules)
