"""Train by delayed gradients: one call for an epoch of any method, on any executor."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from alkit.base import tree
from alkit.data.given import as_pair
from alkit.delayed.methods import method_named
from alkit.delayed.modules import Pipeline
from alkit.delayed.schedules import SHARED, Own, most_in_flight, own_schedule, schedule_for
from alkit.delayed.settings import Settings
from alkit.delayed.stage import ModuleStage
from alkit.engine import trainer
from alkit.engine.losses import check_reduction
from alkit.engine.messages import Group
from alkit.engine.ranks import run_ranks
from alkit.engine.run import run_single, run_threads
from alkit.schedule.flushed import with_norm
from alkit.schedule.task import free_workers


@dataclass(frozen=True, repr=False)
class Trained(trainer.Trained):
    """The results of an epoch: a loss a batch, at the weights that the last module had then."""

    samples: int
    pipeline: Pipeline
    flights: tuple[int, ...]  # by module, the most (micro-)batches that were in flight
    versions: tuple[int, ...]  # by module, the most versions of its weights after an update


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
    seed: int = 0,
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
        workers: on threads, the number of free workers that share the modules. Where workers have
            several modules (`SHARED`), their number, by default half as many as modules.
        schedule: of flushed methods, another order of the same gradients: a `Schedule`, or a file
            that torch or `alkit.schedule.torch_orders` wrote.
        settings: see `Settings`.
    Raises:
        ValueError: an unknown method or executor, no batches, or with `micro` a loss that does not
            say whether it is a mean or a sum.
    """
    if executor not in RUNS:
        raise ValueError(f"executor is {executor!r}: give {', '.join(RUNS)}")
    chosen, own = method_named(method), Settings(**settings)
    own.check(chosen)
    if own.cuts is not None:
        raise TypeError("cuts= is for blocks: the pipeline has its own")
    crew = min(Group().ranks, len(pipeline)) if executor == "ranks" else None
    if schedule is not None:
        ran, micro = own_schedule(schedule, chosen, len(pipeline), micro)
    else:
        crew = workers or crew if method in SHARED else crew
        ran = schedule_for(method, len(pipeline), micro, workers=crew)
    ran = ran if own.clip is None else with_norm(ran)
    if workers not in (None, ran.workers):
        if executor != "threads":
            raise ValueError(f"workers beside executor {executor!r}: free workers are threads")
        ran = free_workers(ran, workers)
    if micro > 1:
        check_reduction(pipeline.loss_fn)
    stages = [
        ModuleStage(pipeline, index, chosen, own, micro, several=most > 1, seed=seed)
        for index, most in enumerate(most_in_flight(ran))
    ]
    sizes: list[int] = []
    start_s = time.perf_counter()
    timeline = RUNS[executor](ran, stages, _counted(batches, sizes), threads=threads)
    losses = stages[-1].losses.rows().squeeze(1)
    pipeline.batches_trained += len(sizes)
    return Trained(
        losses=losses,
        timeline=timeline,
        samples=sum(sizes),
        seconds=time.perf_counter() - start_s,
        pipeline=pipeline,
        flights=tuple(stage.peaks["flights"] for stage in stages),
        versions=tuple(stage.peaks["versions"] for stage in stages),
    )


def _counted(batches: Iterable[Any], sizes: list[int]) -> Iterator[tuple[Any, Any]]:
    for number, batch in enumerate(batches):
        x, y = as_pair(batch, number)
        sizes.append(tree.batch_size(x))
        yield x, y


RUNS = {"single": run_single, "threads": run_threads, "ranks": run_ranks}
