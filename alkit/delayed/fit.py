"""Delayed gradients behind `alkit.fit`."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import torch
import torch.nn.functional as F

from alkit.data.arguments import check_settings
from alkit.delayed import balanced
from alkit.delayed.modules import Pipeline, even_cuts
from alkit.delayed.options import Options
from alkit.delayed.schedules import SHARED, Own, read
from alkit.delayed.trainer import Trainer
from alkit.engine.device import spread
from alkit.engine.optimizers import adam, needs_rate
from alkit.engine.record import Record
from alkit.engine.request import Request, fit_on_ranks, meet
from alkit.models.blocks import as_blocks

# settings with which another network is learned: a run that goes on has the same
LEARNED = ("batch_norm", "correction", "drain", "rates", "replay_noise")


def fit(request: Request) -> Record:
    """Run what was asked: a `Pipeline` as it is, or blocks, which are cut.

    Settings are those of `alkit.delayed.options.Options`, `rates`, `drain` and `schedule`. Without
    cuts there are as many modules as workers, or ranks, or two (twice as many where workers have
    several modules); with cuts, workers are free to run any module, and of a flushed method fewer
    ranks share neighbouring ones.
    """
    request.refuse("settings", why="give rate=, replay_noise=, ... by name")
    request.refuse("accumulate", why="give micro= of gpipe, 1f1b, ... or 2bw")
    if request.plan.precision == "float16":
        request.refuse("precision", why="its gradients cross modules unscaled: give bfloat16")
    request.refuse("compile", why="compile blocks yourself by block.compile()")
    _check_rates(request)
    pipeline = model_of(request)
    if request.ranks > 1:
        return fit_on_ranks(_fit, pipeline, request)
    return _fit(pipeline, request)


def _check_rates(request: Request) -> None:
    """Refuse two things that move a rate at the same time.

    Raises:
        ValueError: says which.
    """
    if request.plan.scheduler != "constant" and request.changes.get("rate") is not None:
        raise ValueError("rate= and scheduler= both move the learning rate: leave one out")


def _fit(pipeline: Pipeline, request: Request) -> Record:
    executor = request.executor or ("ranks" if request.ranks > 1 else "threads")
    own = {name: value for name, value in request.changes.items() if name != "rates"}
    names = ["drain", "schedule", *(each.name for each in fields(Options) if each.init)]
    check_settings(own, names)
    if request.workers is not None:
        if request.workers > len(pipeline):
            request.refuse(
                "workers", why=f"cuts make {len(pipeline)} modules, a worker each at most"
            )
        fewer = request.workers < len(pipeline)  # as many are a worker a module anyway
        apart = "schedule" in own or request.method in SHARED
        own |= {"workers": request.workers} if fewer or apart else {}
    own |= {"micro": request.micro, "threads": request.threads, "seed": request.plan.seed}
    own |= {"clip": request.plan.clip}
    trainer = Trainer(spread(pipeline, request.own_device), request.method, executor, own)
    same = {name: getattr(request, name) for name in ("method", "micro", "threads")}
    same |= {name: str(value) for name, value in request.changes.items() if name in LEARNED}
    if (rate := request.changes.get("rate")) is not None:
        same["rate"] = f"a function, {rate(0)} at batch 0"
    if "schedule" in own:
        same["schedule"] = str(getattr(own["schedule"], "name", own["schedule"]))
    return request.train(trainer, meet(executor, pipeline), identity=same)


def model_of(request: Request) -> Pipeline:
    """Return the pipeline itself, or what is made of blocks."""
    if isinstance(request.model, Pipeline):
        request.refuse(
            "loss", "optimizer", "lr", "cuts", "balanced_cuts", why="the pipeline has its own"
        )
        if "rates" in request.changes:
            raise TypeError("unknown settings rates: the pipeline has its own")
        return request.model
    blocks = as_blocks(request.model)
    modules = request.workers or (request.crew if request.on_ranks else min(2, len(blocks)))
    if (given := read(_schedule(request))) is not None:
        modules = given.stages
    elif _schedule(request) in SHARED:
        chosen = request.workers or request.on_ranks
        modules = 2 * (modules if chosen else max(1, min(modules, len(blocks) // 2)))
    if request.balanced_cuts:
        cuts = balanced.cuts_of(blocks, request, modules)
    elif request.cuts is None:
        cuts = even_cuts(len(blocks), modules)
    else:
        cuts = list(request.cuts)
    optimizer: Callable[..., torch.optim.Optimizer] = request.optimizer or adam
    if request.one_lr is not None:
        optimizer = partial(optimizer, lr=request.one_lr)
    elif needs_rate(optimizer):
        raise ValueError("optimizer= has no learning rate of its own, and none is given: give lr=")
    return Pipeline(
        blocks, request.loss or F.cross_entropy, cuts, optimizer, request.changes.get("rates")
    )


def _schedule(request: Request) -> Own:
    return request.changes.get("schedule") or request.method
