"""Delayed gradients behind `alkit.fit`."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import torch
import torch.nn.functional as F

from alkit.delayed.modules import Pipeline, even_cuts, sgd
from alkit.delayed.options import Options
from alkit.delayed.trainer import Trainer
from alkit.engine.asked import Asked, fit_on_ranks, meet
from alkit.engine.compiled import compile_blocks
from alkit.engine.device import spread
from alkit.engine.loop import train_epochs
from alkit.engine.record import Record
from alkit.models.blocks import as_blocks

__all__ = ["fit", "model_of"]


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Pipeline` as it is, or blocks, which are cut.

    Settings are those of `alkit.delayed.options.Options`, `rates` and `drain`. Without cuts there
    are as many modules as workers, or ranks, or two; with cuts, workers are free to run any module.
    """
    asked.refuse("exits", why="early exits are associated learning's")
    asked.refuse("settings", why="give rate=, replay_noise=, ... by name")
    asked.refuse("accumulate", why="give micro= of gpipe, 1f1b or 2bw")
    if asked.plan.precision == "float16":
        asked.refuse("precision", why="its gradients cross modules unscaled: give bfloat16")
    pipeline = model_of(asked)
    if asked.ranks > 1:
        return fit_on_ranks(_fit, pipeline, asked)
    return _fit(pipeline, asked)


def _fit(pipeline: Pipeline, asked: Asked) -> Record:
    executor = asked.executor or ("ranks" if asked.ranks > 1 else "threads")
    if asked.compile:
        compile_blocks(block for module in pipeline for block in module.blocks)
    own = {name: value for name, value in asked.changes.items() if name != "rates"}
    names = ["drain", *(each.name for each in fields(Options) if each.init)]
    if unknown := [name for name in own if name not in names]:
        raise TypeError(f"unknown settings {', '.join(unknown)}: there are {', '.join(names)}")
    if asked.workers is not None:
        if asked.workers > len(pipeline):
            asked.refuse("workers", why=f"cuts make {len(pipeline)} modules, a worker each at most")
        own |= {"workers": asked.workers} if asked.workers < len(pipeline) else {}
    own |= {"micro": asked.micro, "threads": asked.threads, "seed": asked.plan.seed}
    own |= {"clip": asked.plan.clip}
    return train_epochs(
        Trainer(spread(pipeline, asked.own_device), asked.method, executor, own),
        asked.data,
        asked.plan,
        identity={"method": asked.method, "micro": asked.micro, "threads": asked.threads},
        checkpoint=asked.checkpoint,
        anyway=asked.resume == "anyway",
        tensorboard=asked.tensorboard,
        progress=asked.progress,
        group=meet(executor, pipeline),
        metrics=asked.metrics,
    )


def model_of(asked: Asked) -> Pipeline:
    """Return the pipeline itself, or what is made of blocks."""
    if isinstance(asked.model, Pipeline):
        asked.refuse("loss", "optimizer", "lr", "cuts", why="the pipeline has its own")
        if "rates" in asked.changes:
            raise TypeError("unknown settings rates: the pipeline has its own")
        return asked.model
    blocks = as_blocks(asked.model)
    modules = asked.workers or (asked.crew if asked.on_ranks else min(2, len(blocks)))
    cuts = even_cuts(len(blocks), modules) if asked.cuts is None else asked.cuts
    optimizer: Callable[..., torch.optim.Optimizer] = asked.optimizer or sgd
    if asked.one_lr is not None:
        optimizer = partial(optimizer, lr=asked.one_lr)
    return Pipeline(
        blocks, asked.loss or F.cross_entropy, cuts, optimizer, asked.changes.get("rates")
    )
