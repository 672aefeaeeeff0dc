"""Delayed gradients behind `alkit.fit`."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from alkit.delayed.auto_cuts import auto_cuts
from alkit.delayed.corrections import PipeMare
from alkit.delayed.layers import check_cuts, check_layers, starts_of
from alkit.delayed.methods import METHODS
from alkit.delayed.modules import Pipeline, even_cuts, sgd
from alkit.delayed.options import Options
from alkit.delayed.schedules import SHARED, Own, in_halves, read
from alkit.delayed.trainer import Trainer
from alkit.engine.compiled import while_compiled
from alkit.engine.device import spread
from alkit.engine.optimizers import needs_rate
from alkit.engine.record import Record
from alkit.engine.request import Request, fit_on_ranks, meet
from alkit.models.blocks import as_blocks

# settings with which another network is learned: a run that goes on has the same
LEARNED = ("batch_norm", "correction", "deferred_batch_norm", "drain", "rates", "replay_noise")


def fit(request: Request) -> Record:
    """Run what was asked: a `Pipeline` as it is, or blocks, which are cut.

    Settings are those of `alkit.delayed.options.Options`, `rates`, `drain` and `schedule`. Without
    cuts there are as many modules as workers, or ranks, or two (twice as many where workers have
    several modules); with cuts, workers are free to run any module, and of a flushed method fewer
    ranks share neighbouring ones.
    """
    request.refuse("exits", why="early exits are associated learning's")
    request.refuse("settings", why="give rate=, replay_noise=, ... by name")
    request.refuse("accumulate", why="give micro= of gpipe, 1f1b, ... or 2bw")
    if request.plan.precision == "float16":
        request.refuse("precision", why="its gradients cross modules unscaled: give bfloat16")
    method = METHODS[request.method]
    if method.errors in ("fixed", "sign"):
        request.refuse("compile", why="what compiled blocks call can't be seen: dfa can")
    if method.errors == "direct":
        request.refuse("memory", why="how many bytes its B take is not measured")
    schedule = _schedule(request)
    if schedule != request.method or schedule in SHARED:
        request.refuse("memory", why="its book is of a module a worker, in the method's own order")
    if request.changes.get("deferred_batch_norm"):
        request.refuse("compile", why="what compiled blocks normalise can't be seen")
    if in_halves(schedule):
        request.refuse("compile", why="compiled blocks have no half backwards: take 1f1b")
    if request.compile == "auto":
        request.refuse("compile", why="no race of its halves of a step: give 'steps' or False")
    _check_rates(request)
    pipeline = model_of(request)
    check_layers(method, pipeline.all_blocks, None if request.sample is None else request.sample[0])
    check_cuts(method, pipeline.all_blocks, pipeline.cuts)
    if request.ranks > 1:
        return fit_on_ranks(_fit, pipeline, request)
    return _fit(pipeline, request)


def _check_rates(request: Request) -> None:
    """Refuse two things that move a rate at the same time.

    Raises:
        ValueError: says which.
    """
    correction, plan = request.changes.get("correction"), request.plan
    if plan.scheduler != "constant" and request.changes.get("rate") is not None:
        raise ValueError("rate= and scheduler= both move the learning rate: leave one out")
    warms = correction == "pipemare" or isinstance(correction, PipeMare)
    if plan.scheduler_every == "batch" and warms:
        raise ValueError(
            "scheduler_every is 'batch', and pipemare moves the rate every batch, too: let the"
            " scheduler go by epochs"
        )


def _fit(pipeline: Pipeline, request: Request) -> Record:
    executor = request.executor or ("ranks" if request.ranks > 1 else "threads")
    blocks = [block for module in pipeline for block in module.blocks]
    compiled = while_compiled(blocks, request.compile) if request.compile else nullcontext()
    own = {name: value for name, value in request.changes.items() if name != "rates"}
    names = ["drain", "schedule", *(each.name for each in fields(Options) if each.init)]
    if unknown := [name for name in own if name not in names]:
        raise TypeError(f"unknown settings {', '.join(unknown)}: there are {', '.join(names)}")
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
    with compiled:
        return request.train(trainer, meet(executor, pipeline), identity=same)


def model_of(request: Request) -> Pipeline:
    """Return the pipeline itself, or what is made of blocks."""
    if isinstance(request.model, Pipeline):
        request.refuse(
            "loss", "optimizer", "lr", "cuts", "auto_cuts", why="the pipeline has its own"
        )
        if "rates" in request.changes:
            raise TypeError("unknown settings rates: the pipeline has its own")
        return request.model
    blocks = as_blocks(request.model)
    starts = _places(request.method, blocks)
    modules = request.workers or (request.crew if request.on_ranks else min(2, len(starts)))
    if (given := read(_schedule(request))) is not None:
        modules = given.stages
    elif _schedule(request) in SHARED:
        chosen = request.workers or request.on_ranks
        modules = 2 * (modules if chosen else max(1, min(modules, len(starts) // 2)))
    if request.auto_cuts:
        ends = [*starts[1:], len(blocks)]
        parts = [_part(blocks[a:b]) for a, b in zip(starts, ends, strict=True)]
        cuts = [starts[part] for part in auto_cuts(parts, request, modules)]
    elif request.cuts is None:
        cuts = [starts[part] for part in even_cuts(len(starts), modules)]
    else:
        cuts = list(request.cuts)
    optimizer: Callable[..., torch.optim.Optimizer] = request.optimizer or sgd
    if request.one_lr is not None:
        optimizer = partial(optimizer, lr=request.one_lr)
    elif needs_rate(optimizer):
        raise ValueError("optimizer= has no learning rate of its own, and none is given: give lr=")
    return Pipeline(
        blocks, request.loss or F.cross_entropy, cuts, optimizer, request.changes.get("rates")
    )


def _places(method: str, blocks: Sequence[nn.Module]) -> list[int]:
    """Return the blocks that a module may begin with."""
    return starts_of(blocks) if METHODS[method].errors == "direct" else [*range(len(blocks))]


def _part(blocks: Sequence[nn.Module]) -> nn.Module:
    return blocks[0] if len(blocks) == 1 else nn.Sequential(*blocks)


def _schedule(request: Request) -> Own:
    return request.changes.get("schedule") or request.method
