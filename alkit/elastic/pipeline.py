"""An epoch of the pipeline in the layout that runs, on every rank the same.

process of first stage    outputs of frozen layers (stored, or made now), then F B ...
other processes           labels only; their inputs come through the pipeline
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from alkit.base import tree
from alkit.elastic.cache import Cache
from alkit.elastic.settings import SCHEDULES
from alkit.elastic.stage import Replica, UnitStage
from alkit.engine import trainer
from alkit.engine.losses import shares
from alkit.engine.ranks import run_ranks
from alkit.engine.run import run_single

COUNTS = ("hits", "advanced", "misses")


@dataclass(frozen=True, kw_only=True)
class Trained(trainer.Trained):
    """The results of an epoch, the same on all ranks except for seconds."""

    row: dict[str, Any]  # columns of the history
    squares: list[float]  # a layer: the sum over steps of the squared norm of its gradient


def run_epoch(
    replica: Replica, steps: Sequence[Tensor], cache: Cache, y: Tensor, threads: int
) -> Trained:
    """Run an epoch of steps, each the rows of a global batch; every rank calls it."""
    start_s, world, layout = time.perf_counter(), replica.world, replica.layout
    cache.counts.clear()
    schedule = SCHEDULES[replica.settings.schedule](layout.stages, replica.micro)
    stages = [UnitStage(replica, index) for index in range(layout.stages)]
    work: Any = (schedule, stages, _batches(replica, steps, cache, y))
    if world.ranks == 1:
        timeline = run_single(*work, threads=threads)
    else:
        timeline = run_ranks(*work, threads=threads, pipelines=layout.replicas, spare=True)
    losses = torch.stack(replica.losses).cpu() if replica.losses else torch.zeros(0)
    if replica.losses:
        losses = world.reduce(losses)
    losses = world.broadcast(losses, layout.stages - 1)
    counts = world.total(torch.tensor([cache.counts[name] for name in COUNTS]))
    # gradients of the replicas are the same
    squares = world.total(replica.squares[:-1] * (world.rank < layout.stages))
    seconds, samples = time.perf_counter() - start_s, sum(map(len, steps))
    row = {"train_s": seconds, "samples_per_s": samples / seconds}
    return Trained(
        losses=losses.double().view(-1, 1, 1),
        timeline=timeline,
        seconds=seconds,
        row=row | dict(zip(COUNTS, counts.tolist(), strict=True)),
        squares=squares.tolist(),
    )


def _batches(
    replica: Replica, steps: Sequence[Tensor], cache: Cache, y: Tensor
) -> Iterator[tuple[SimpleNamespace, list[Any]]]:
    """Yield inputs, wrapped as not every process has some; labels and weights of micro-batches."""
    for step in steps:
        (rows, labels), x = _own_parts(replica, step, y), None
        if replica.world.stage == 0:
            x = cache.features(rows) if replica.layout.start else cache.inputs(rows)
        yield SimpleNamespace(x=x), labels


def _own_parts(
    replica: Replica, rows: Tensor, y: Tensor
) -> tuple[Tensor, list[tuple[Tensor, float]]]:
    """Return the rows of a global batch for this process; (labels, weight) of its micro-batches.

    Replica r has the r-th of equal parts, so a change of their number leaves every global batch as
    it was. Weights are those of parts of it; gradients of replicas are added as a mean.
    """
    replicas, micro, world = replica.layout.replicas, replica.micro, replica.world
    each = micro if world.ranks > 1 else micro // replicas
    own = tree.micro_batches(rows, replicas)
    every = [part for rank in own for part in tree.micro_batches(rank, each)]
    weights = shares(replica.network.loss, [y[part] for part in every])
    if world.ranks > 1:
        mine = slice(world.replica * micro, (world.replica + 1) * micro)
        every, weights = every[mine], [replicas * weight for weight in weights[mine]]
    return torch.cat(every), [(y[part], own) for part, own in zip(every, weights, strict=True)]
