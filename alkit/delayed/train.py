"""Train by delayed gradients: one call for an epoch of any method, on any executor."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import Brief, changed
from alkit.data.pairs import as_pair
from alkit.delayed.correction import check_correction
from alkit.delayed.methods import ORDERS, Method, method_named
from alkit.delayed.modules import Pipeline
from alkit.delayed.options import Options
from alkit.delayed.schedules import (
    SHARED,
    Own,
    micro_of,
    most_in_flight,
    own_schedule,
    schedule_for,
)
from alkit.delayed.stage import ModuleStage
from alkit.engine.group import Group
from alkit.engine.ranks import owners, run_ranks
from alkit.engine.reduction import check_reduction
from alkit.engine.run import run_single, run_threads
from alkit.schedule.flushed import with_norm
from alkit.schedule.task import Schedule, free_workers
from alkit.schedule.timeline import Timeline


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


def train_epoch(
    pipeline: Pipeline,
    batches: Iterable[tuple[Any, Any]],
    method: str = "pipedream",
    executor: str = "single",
    *,
    micro: int = 1,
    threads: int = 1,
    workers: int | None = None,
    schedule: Own | None = None,
    **settings: Any,
) -> Trained:
    """Train once on every batch; all executors end in the same bits.

    Args:
        batches: pairs (x, y), which may differ in size; y goes to the loss.
        executor: "single", on the calling thread; "threads", one a module; "ranks", to be called on
            every rank with the same pipeline and batches (see `alkit.launch`), a rank a module;
            with a flushed method, fewer ranks share neighbouring modules.
        micro: micro-batches per batch, for 2bw and the flushed methods.
        threads: operator threads of each worker. Bits are equal at equal numbers.
        workers: on threads, so many free workers share the modules, in the place of one a module:
            no cut need be balanced. Staleness stays that of the number of modules.
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
    if executor not in RUNS:
        raise ValueError(f"executor is {executor!r}: give {', '.join(RUNS)}")
    chosen, options = method_named(method), changed(Options, settings)
    if options.clip is not None and chosen.order != "flushed":
        raise ValueError(f"clip is {options.clip}, and no module of {method} waits for others")
    normed = (lambda made: made) if options.clip is None else with_norm
    schedule = method if schedule is None and method in SHARED else schedule
    ranks = Group(executor).ranks if executor == "ranks" else None
    if schedule is not None:
        workers = workers or ranks
        ran = normed(own_schedule(schedule, chosen, len(pipeline), micro, workers))
        micro = micro_of(ran)
    else:
        fewer = ranks if ranks and ranks < len(pipeline) else None
        ran = normed(schedule_for(method, len(pipeline), micro, workers=fewer))
        if workers is not None:
            if executor != "threads":
                raise ValueError(f"workers beside executor {executor!r}: free workers are threads")
            ran = free_workers(ran, workers)
    check_correction(options.correction, chosen)
    if micro > 1:
        check_reduction(pipeline.loss_fn)
    stages = _stages(pipeline, chosen, options, ran)
    feed, start_s = _Feed(batches), time.perf_counter()
    timeline = RUNS[executor](ran, stages, feed, threads=threads)
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
    """Passes batches on and counts them."""

    def __init__(self, batches: Iterable[tuple[Any, Any]]) -> None:
        self.source = batches
        self.batches = self.samples = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number, batch in enumerate(self.source):
            payload = as_pair(batch, number)
            self.batches += 1
            self.samples += tree.batch_size(payload[0])
            yield payload


def _on_ranks(
    schedule: Schedule, stages: Sequence[ModuleStage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run this rank's modules, then give every rank what the others have trained."""
    timeline = run_ranks(schedule, stages, batches, threads=threads)

    def trained(at: int) -> tuple[Any, ...]:
        own = stages[at]
        optimizer = None if own.optimizer is None else own.optimizer.state_dict()
        losses = own.losses.rows() if own.losses else None
        peaks = own.peak_flights, own.versions.peak, own.input_bytes
        return dict(own.module.state_dict()), optimizer, losses, *peaks

    def take_over(at: int, found: tuple[Any, ...]) -> None:
        own = stages[at]
        weights, optimizer, losses, own.peak_flights, own.versions.peak, own.input_bytes = found
        own.module.load_state_dict(weights)
        if own.optimizer is not None:
            own.optimizer.load_state_dict(optimizer)
        if losses is not None:
            own.losses.take_over(losses)

    Group("ranks").share(owners(schedule), trained, take_over)
    return timeline


RUNS = {"single": run_single, "threads": run_threads, "ranks": _on_ranks}
