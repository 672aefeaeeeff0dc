"""Train by delayed gradients: one call for an epoch of any method, on any executor."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from alkit.data import tree
from alkit.data.arguments import Brief, changed
from alkit.data.pairs import as_pair
from alkit.delayed.correction import check_correction
from alkit.delayed.methods import ORDERS, Method, method_named
from alkit.delayed.modules import Loss, Optimizer, Pipeline
from alkit.delayed.options import Options
from alkit.delayed.schedules import (
    SHARED,
    Own,
    micro_of,
    most_in_flight,
    own_schedule,
    schedule_for,
)
from alkit.delayed.share import execute_on_ranks
from alkit.delayed.stage import ModuleStage
from alkit.engine.device import synchronize
from alkit.engine.group import Group
from alkit.engine.optimizers import adam
from alkit.engine.reduction import check_reduction
from alkit.engine.run import run_single, run_threads
from alkit.schedule.task import Schedule, free_workers
from alkit.schedule.timeline import Timeline

EXECUTORS = ("single", "threads", "ranks")


@dataclass(frozen=True, repr=False)
class Trained(Brief):
    """What an epoch left behind.

    Attributes:
        losses: float or double (batches,), each at the weights that the last module had then.
        timeline: measured.
        samples: samples seen.
        seconds: wall time, loading included.
        pipeline: what was trained; give it to `train_epoch` to go on.
        flights: for each module, the most batches (micro-batches) that were in flight.
        versions: for each module, the most versions of its weights right after an update.
        input_bytes: for each module, the bytes of one batch's (micro-batch's) input.
    """

    losses: Tensor
    timeline: Timeline
    samples: int
    seconds: float
    pipeline: Pipeline
    flights: tuple[int, ...]
    versions: tuple[int, ...]
    input_bytes: tuple[int, ...]


def train(
    blocks: Iterable[nn.Module],
    loss: Loss,
    batches: Iterable[tuple[Any, Any]],
    *,
    method: str = "pipedream",
    cuts: Sequence[int] = (),
    executor: str = "single",
    optimizer: Optimizer = adam,
    rates: Sequence[float] | None = None,
    **settings: Any,
) -> Trained:
    """Cut `blocks` into modules and train them, in place, once on every batch.

    Args:
        blocks, loss, cuts, optimizer, rates: see `Pipeline`.
        method: of `alkit.delayed.METHODS`.
        executor, settings: see `train_epoch`.
    Raises:
        ValueError: cuts, methods, batches or settings that don't fit; says what would.
    """
    pipeline = Pipeline(blocks, loss, cuts, optimizer, rates)
    return train_epoch(pipeline, batches, method, executor, **settings)


def train_epoch(
    pipeline: Pipeline,
    batches: Iterable[tuple[Any, Any]],
    method: str = "pipedream",
    executor: str = "single",
    *,
    micro: int = 1,
    threads: int = 1,
    workers: int | None = None,
    drain: bool = True,
    replicas: int = 1,
    schedule: Own | None = None,
    **settings: Any,
) -> Trained:
    """Train once on every batch; all executors end in the same bits.

    Args:
        batches: pairs (x, y), which may differ in size; y goes to the loss. One with fewer samples
            than micro-batches and replicas ask for is trained with the batch before it.
        executor: "single", on the calling thread; "threads", one a module; "ranks", to be called on
            every rank with the same pipeline and batches (see `alkit.launch`), a rank a module;
            with a flushed method, fewer ranks share neighbouring modules.
        micro: micro-batches per batch, for 2bw and the flushed methods.
        threads: operator threads of each worker. Bits are equal at equal numbers.
        workers: on threads, so many free workers share the modules, in the place of one a module:
            no cut need be balanced. Staleness stays that of the number of modules.
        drain: empty the pipeline at the end. Without it the last batches' gradients are lost.
        replicas: on ranks, equal pipelines side by side: each takes its part of every batch, and
            modules average their gradients before an update. R x K ranks; running statistics are
            those of the first pipeline.
        schedule: of flushed methods, another order of the same gradients: a method's name;
            a file that torch or `alkit.schedule.torch_orders` wrote; or a `Schedule`. Where workers
            have several modules ("interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"; by method=
            too) there are so many `workers`, by default half as many; on ranks a worker is a rank.
        settings: see `Options`.
    Raises:
        ValueError: an unknown method or executor, no batches, or with `micro` a loss that does not
            say whether it is a mean or a sum.
        FloatingPointError: a loss is not finite. The pipeline is spoilt then.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor is {executor!r}: give {', '.join(EXECUTORS)}")
    chosen, options = method_named(method), changed(Options, settings)
    schedule = method if schedule is None and method in SHARED else schedule
    ranks = Group(executor).ranks // max(1, replicas) if executor == "ranks" else None
    if schedule is not None:
        workers = workers or ranks
        ran = own_schedule(schedule, chosen, len(pipeline), micro, workers)
        micro = micro_of(ran)
    else:
        fewer = ranks if ranks and ranks < len(pipeline) else None
        ran = schedule_for(method, len(pipeline), micro, drain=drain, workers=fewer)
        if workers is not None:
            if executor != "threads":
                raise ValueError(f"workers beside executor {executor!r}: free workers are threads")
            ran = free_workers(ran, workers)
    check_correction(options.correction, chosen)
    if micro > 1:
        check_reduction(pipeline.loss_fn)
    stages = _stages(pipeline, chosen, options, ran)
    if replicas < 1 or (replicas > 1 and executor != "ranks"):
        raise ValueError(f"{replicas} replicas on {executor}: replicas are for ranks, 1 or more")
    feed, start_s = _Feed(batches, micro, replicas, ran.workers), time.perf_counter()
    if executor == "ranks":
        options = {"threads": threads, "replicas": replicas}
        timeline = execute_on_ranks(pipeline, ran, stages, feed, **options)
    else:
        run = run_single if executor == "single" else run_threads
        timeline = run(ran, stages, feed, threads=threads)
    synchronize(pipeline)
    losses = stages[-1].losses.rows().squeeze(1)
    pipeline.batches_trained += feed.batches
    return Trained(
        losses=losses,
        timeline=timeline,
        samples=feed.samples,
        seconds=time.perf_counter() - start_s,
        pipeline=pipeline,
        flights=tuple(stage.peak_flights for stage in stages),
        versions=tuple(stage.versions.peak for stage in stages),
        input_bytes=tuple(stage.input_bytes for stage in stages),
    )


def _stages(
    pipeline: Pipeline, method: Method, options: Options, schedule: Schedule
) -> list[ModuleStage]:
    if options.ledgers is not None and len(options.ledgers) != len(pipeline):
        raise ValueError(
            f"{len(options.ledgers)} ledgers for {len(pipeline)} modules: give one each"
        )
    if options.recompute and method.order != "flushed":
        names = ", ".join(ORDERS)
        raise ValueError(f"recompute is True, which {method.name} can't take: it is of {names}")
    if method.backward not in ("replay", "recompute") and not options.recompute:
        for name in ("replay_noise", "batch_norm"):
            if (value := getattr(options, name)) != getattr(Options, name):
                raise ValueError(f"{name} is {value!r}, and {method.name} runs no forward again")
    micro = micro_of(schedule)
    return [
        ModuleStage(pipeline, index, method, options, micro, several=most > 1)
        for index, most in enumerate(most_in_flight(schedule))
    ]


class _Feed:
    """Passes batches on and counts them.

    With replicas it passes on this rank's pipeline's part. There a batch of too few samples for all
    micro-batches of all replicas joins the one before it, so one batch waits here.
    """

    def __init__(
        self,
        batches: Iterable[tuple[Any, Any]],
        micro: int = 1,
        replicas: int = 1,
        workers: int = 1,
    ) -> None:
        self.source, self.replicas, self.workers = batches, replicas, workers
        self.micro = micro
        self.least = micro * replicas if replicas > 1 else 1  # of a batch, but the first
        self.batches = self.samples = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        pairs = (as_pair(batch, number) for number, batch in enumerate(self.source))
        for payload in self._filled(pairs):
            self.batches += 1
            self.samples += tree.batch_size(payload[0])
            yield self._part(payload)

    def _filled(self, pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        if self.least == 1:
            yield from pairs
            return
        held = next(pairs, None)
        for payload in pairs:
            if tree.batch_size(payload[0]) < self.least:
                held = tree.joined([held, payload])
            else:
                assert held is not None  # the first one, or a later one
                yield held
                held = payload
        if held is not None:
            yield held

    def _part(self, payload: tuple[Any, Any]) -> tuple[Any, Any]:
        size, least = tree.batch_size(payload[0]), self.micro * self.replicas
        if size < (least if self.batches == 1 else self.least):
            raise ValueError(
                f"a batch of {size} does not divide into {least} parts, micro-batches of"
                f" {self.replicas} replicas: give larger batches"
            )
        if self.replicas == 1:
            return payload
        if size % self.replicas:
            raise ValueError(f"a batch of {size} does not divide among {self.replicas} replicas")
        start = dist.get_rank() // self.workers * (size // self.replicas)
        rows = slice(start, start + size // self.replicas)
        return tree.map_tensors(lambda tensor: tensor[rows], payload)
