"""Delayed gradients behind `alkit.fit`: the pipeline is emptied after every epoch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from alkit.base.arguments import as_whole
from alkit.delayed import balanced
from alkit.delayed.methods import METHODS
from alkit.delayed.modules import Pipeline, even_cuts
from alkit.delayed.options import Settings
from alkit.delayed.schedules import SHARED, Own, read
from alkit.delayed.train import Trained, train_epoch
from alkit.engine import trainer
from alkit.engine.device import spread
from alkit.engine.loop import train_epochs
from alkit.engine.optimizers import adam, needs_rate
from alkit.engine.plan import Plan, fit_on_ranks, meet
from alkit.engine.trainer import Record
from alkit.models.blocks import as_blocks

# settings with which another network is learned: a run that goes on has the same
LEARNED = ("batch_norm", "clip", "correction", "rates", "replay_noise")
OWN = ("loss", "optimizer", "lr")  # of a pipeline that is there


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of a method's settings."""
    return Settings


@dataclass
class Trainer(trainer.Trainer):
    """A pipeline, and how an epoch of it is run.

    Args:
        options: of `alkit.delayed.train_epoch`.
    """

    model: Pipeline
    method: str = "pipedream"
    executor: str = "threads"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The pipeline's loss."""
        return self.model.loss_fn

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""
        return train_epoch(self.model, batches, self.method, self.executor, **self.options)


def fit(plan: Plan) -> Record:
    """Run what was asked: a `Pipeline` as it is, or blocks, which are cut.

    Without cuts there are as many modules as workers, or ranks, or two (twice as many where workers
    have several modules); with cuts, workers are free to run any module, and of a flushed method
    fewer ranks share neighbouring ones.
    """
    return fit_on_ranks(_fit, model_of(plan), plan)


def _fit(pipeline: Pipeline, plan: Plan) -> Record:
    own, options = Settings(**plan.settings), dict(plan.settings)
    for name in ("cuts", "rates"):
        options.pop(name, None)
    if plan.workers is not None:
        if plan.workers > len(pipeline):
            plan.refuse("workers", why=f"cuts make {len(pipeline)} modules, a worker each at most")
        fewer = plan.workers < len(pipeline)  # as many are a worker a module anyway
        apart = own.schedule is not None or plan.method in SHARED
        options |= {"workers": plan.workers} if fewer or apart else {}
    options |= {"micro": own.micro, "threads": plan.threads, "seed": plan.seed}
    trainer = Trainer(spread(pipeline, plan.own_device), plan.method, plan.executor, options)
    same = {"method": plan.method, "micro": own.micro, "threads": plan.threads}
    same |= {name: str(value) for name, value in plan.settings.items() if name in LEARNED}
    if own.schedule is not None:
        same["schedule"] = str(getattr(own.schedule, "name", own.schedule))
    return train_epochs(trainer, plan, group=meet(plan.executor, pipeline), identity=same)


def model_of(plan: Plan) -> Pipeline:
    """Return the pipeline itself, or what is made of blocks."""
    own = Settings(**plan.settings)
    if own.clip is not None and METHODS[plan.method].order != "flushed":
        raise TypeError(
            f"{plan.method} takes no clip=: give optimizer=alkit.clipped(torch.optim.Adam, NORM), a"
            " norm for each module, for none waits for all"
        )
    if isinstance(plan.model, Pipeline):
        plan.refuse(*OWN, why="the pipeline has its own")
        if own.cuts is not None or own.rates is not None:
            raise TypeError("cuts= and rates= are for blocks: the pipeline has its own")
        return plan.model
    blocks = as_blocks(plan.model)
    modules = plan.workers or (plan.crew if plan.on_ranks else min(2, len(blocks)))
    schedule: Own = own.schedule or plan.method
    if (given := read(schedule)) is not None:
        modules = given.stages
    elif schedule in SHARED:
        chosen = plan.workers or plan.on_ranks
        modules = 2 * (modules if chosen else max(1, min(modules, len(blocks) // 2)))
    if isinstance(own.cuts, str):
        _check_balanced(own.cuts, plan)
        cuts = balanced.cuts_of(blocks, plan, modules)
    elif own.cuts is None:
        cuts = even_cuts(len(blocks), modules)
    else:
        cuts = [as_whole(cut) for cut in own.cuts]
    optimizer: Callable[..., torch.optim.Optimizer] = plan.optimizer or adam
    if plan.one_lr is not None:
        optimizer = partial(optimizer, lr=plan.one_lr)
    elif needs_rate(optimizer):
        raise ValueError("optimizer= has no learning rate of its own, and none is given: give lr=")
    return Pipeline(blocks, plan.loss or F.cross_entropy, cuts, optimizer, own.rates)


def _check_balanced(cuts: str, plan: Plan) -> None:
    if cuts != "balanced":
        raise ValueError(f"cuts is {cuts!r}: give block numbers, or 'balanced'")
    if plan.checkpoint is not None:
        raise ValueError(
            "cuts is 'balanced' and checkpoint is given: a run that goes on needs the cuts that it"
            " had, give those of a first call, list(record.model.cuts)"
        )
