"""Train for an epoch in any mode."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch import Tensor

from alkit.al import ranks as train_ranks
from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.al.stages import Epoch
from alkit.al.whole import WholeStage
from alkit.base.arguments import Brief, check_whole
from alkit.engine.compiled import Compile, check_compile
from alkit.engine.costs import Ledger, balanced_cuts
from alkit.engine.device import cores, synchronize
from alkit.engine.group import Group
from alkit.engine.run import execute, run_single
from alkit.schedule import task as schedules
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline

AL_MODES = ("al", "al_m", "al_fm", "al_pipeline")
LOCAL_MODES = {"local": "al", "local_pipeline": "al_pipeline"}  # and whose order they run in
PROBE_BATCHES = 2  # run in al's order to time the layers, before a pipeline of few workers is cut


@dataclass(frozen=True, repr=False)
class Trained(Brief):
    """What an epoch left behind.

    Attributes:
        losses: float (batches, layers, 2), associated and autoencoder; with bp (batches, 1, 1).
        head: losses of the head beside the layers, float (batches,).
        timeline: measured; its `step_s` is the time of a batch.
        samples: samples seen.
        seconds: wall time, loading included.
        cuts: the first layer of every pipeline worker but the first; none with free workers.
        eager: with compile="steps", why each layer ran as it is, "" for those that were compiled.
    """

    losses: Tensor
    timeline: Timeline
    samples: int
    seconds: float
    cuts: tuple[int, ...] = ()
    head: Tensor | None = None
    eager: tuple[str, ...] = ()


def train_epoch(
    model: ALModel | BPModel,
    batches: Iterable[tuple[Any, Tensor]],
    mode: str = "al_pipeline",
    workers: int | None = None,
    threads: int = 1,
    *,
    cuts: Sequence[int] | None = None,
    capacity: int = 2,
    seed: int = 0,
    check_finite: bool = True,
    ledgers: Sequence[Ledger] | None = None,
    executor: str = "threads",
    compile: Compile = False,
) -> Trained:
    """Train `model` once on every batch; all AL modes end in the same bits.

    Args:
        batches: pairs (x, y), y class numbers (B,) or rows of shares (B, C).
        mode: "al", "al_m", "al_fm" or "al_pipeline" for an ALModel, "local" or "local_pipeline"
            for one that `to_local` made, "bp" for a BPModel.
        workers: the most workers to use. al, local and bp use one; al_m and al_fm at least two:
            one for the forwards and by default one a layer; a pipeline by default as many as there
            are cores, at most one a layer.
        threads: operator threads of each worker. Bits are equal at equal numbers.
        cuts: of a pipeline: the first layer of every worker but the first. By default none: workers
            are free to take any task that may start. Ranks hold layers, so they need cuts; theirs
            are by default balanced by measured time, for which the first call runs two batches in
            al's order.
        capacity: of a pipeline: batches that may wait between two workers, or with free workers
            between two layers.
        seed: dropout and other noise are a function of it, the layer and the batch's number.
        check_finite: raise at a loss that is not finite.
        ledgers: count the bytes that the forwards keep for their backwards, one a layer (with bp
            one in all); layers may share one.
        executor: "threads", or of a pipeline "ranks": call it on every rank with the same model
            and batches (see `alkit.launch`); all ranks end with all that was trained.
        compile: "steps" compiles each layer's forward, backward and update as one call without the
            interpreter's lock (`alkit.engine.compiled`); of backprop all of it. Bits are equal in
            all modes that run so, and results up to rounding as without. Not for al_m and al_fm,
            whose forwards run apart. A layer that draws random numbers runs as it is.
    Raises:
        ValueError: unknown mode, no batches, or a batch that doesn't fit.
        FloatingPointError: a loss is not finite; names layer and batch. The model is spoilt
            then: go back to a checkpoint.
    """
    _check_mode(model, mode, workers, threads, cuts, executor)
    mode = LOCAL_MODES.get(mode, mode)
    group = Group(executor)
    if executor == "ranks":
        group.check_size(workers=workers)
    run = Epoch(model, seed, check_finite, ledgers)
    _check_steps(mode, ledgers, compile)
    if compile:
        run.ran = [WholeStage(stage) for stage in run.stages]
    start_s, before = time.perf_counter(), int(model.batches_trained)
    counted = run.counted(batches)
    stream: Iterator[tuple[Any, Tensor]] | None = counted
    parts: list[Timeline] = []
    if isinstance(model, ALModel) and executor == "ranks" and cuts is None:
        parts, cuts, stream = _measured_cuts(model, run, counted, group.ranks, threads)
        cuts = group.broadcast(list(cuts))  # every rank has measured its own
    if stream is not None:
        workers = workers or max(1, cores() // threads) if mode == "al_pipeline" else workers
        schedule = schedule_for(mode, len(run.ran), workers, cuts, capacity)
        if executor == "ranks":
            parts.append(
                train_ranks.execute_on_ranks(run, schedule, stream, group, threads=threads)
            )
        else:
            parts.append(execute(schedule, run.ran, stream, threads=threads))
    synchronize(model)
    model.batches_trained.fill_(before + run.batches)
    timeline = Timeline.joined(parts)
    if isinstance(model, ALModel):
        model.layer_seconds = timeline.stage_s()
    seconds = time.perf_counter() - start_s
    why = tuple(each.step.why for each in run.ran if isinstance(each, WholeStage))
    found = run.losses(), timeline, run.samples, seconds, tuple(cuts or ())
    return Trained(*found, head=run.head_losses(), eager=why)


def _check_steps(mode: str, ledgers: Sequence[Ledger] | None, compile: Compile) -> None:
    check_compile(compile)
    if compile and mode in ("al_m", "al_fm"):
        raise ValueError(
            f"compile is {compile!r}, and {mode} runs forwards apart from their backwards: give al"
            " or al_pipeline"
        )
    if compile and ledgers is not None:
        raise ValueError("ledgers count what forwards keep, and compiled steps keep nothing")


def schedule_for(
    mode: str,
    layers: int,
    workers: int | None = None,
    cuts: Sequence[int] | None = None,
    capacity: int = 2,
) -> Schedule:
    """Return the schedule of a mode; al_pipeline without `cuts` gets free workers, or by default a
    worker a layer."""
    if mode in ("al_m", "al_fm"):
        # two workers are the fewest that these modes make sense with: one of them runs the forwards
        count = None if workers is None else min(max(workers, 2), layers + 1)
        return getattr(schedules, mode)(layers, count)
    if mode == "al_pipeline":
        workers = workers or layers
        if cuts is None and 1 < workers < layers:
            return schedules.free_workers(schedules.al_pipeline(layers, None, capacity), workers)
        return schedules.al_pipeline(layers, [] if workers == 1 else cuts, capacity)
    return schedules.bp() if mode == "bp" else schedules.al(layers)


def _measured_cuts(
    model: ALModel,
    run: Epoch,
    stream: Iterator[tuple[Any, Tensor]],
    ranks: int,
    threads: int,
) -> tuple[list[Timeline], list[int], Iterator[tuple[Any, Tensor]] | None]:
    """Cut the layers by measured time: what has run for that, the cuts, and the batches left.

    AL has no staleness, so the batches that are timed in al's order are training like any other.
    """
    layers, parts = len(run.stages), []
    seconds = model.layer_seconds
    if ranks < layers and seconds is None:
        probe = run_single(
            schedules.al(layers), run.ran, islice(stream, PROBE_BATCHES), threads=threads
        )
        parts, seconds, run.offset = [probe], probe.stage_s(), run.batches
    cuts = balanced_cuts(seconds or [1.0] * layers, min(ranks, layers))
    following = next(stream, None)
    if following is None and parts:
        return parts, cuts, None  # no more batches than the probe took
    return parts, cuts, stream if following is None else chain([following], stream)


def _check_mode(
    model: ALModel | BPModel,
    mode: str,
    workers: int | None,
    threads: int,
    cuts: Sequence[int] | None,
    executor: str,
) -> None:
    check_method(model, mode)
    pipeline = LOCAL_MODES.get(mode, mode) == "al_pipeline"
    check_whole(workers=workers, threads=threads)
    if cuts is not None and not pipeline:
        raise ValueError(f"cuts belong to modes al_pipeline and local_pipeline, not to {mode}")
    if executor not in ("threads", "ranks"):
        raise ValueError(f"executor is {executor!r}: give threads or ranks")
    if executor == "ranks" and not pipeline:
        raise ValueError(f"mode {mode} runs on threads; ranks run al_pipeline and local_pipeline")


def check_method(model: ALModel | BPModel, method: str) -> None:
    """Refuse a name that is not what a model does."""
    allowed: Iterable[str] = AL_MODES
    if isinstance(model, BPModel):
        allowed = ("bp",)
    elif model.rule:
        allowed = LOCAL_MODES
    if method not in allowed:
        what = type(model).__name__
        what += f" by rule {rule!r}" if (rule := getattr(model, "rule", "")) else ""
        raise ValueError(f"unknown mode {method!r} for {what}: give {', '.join(allowed)}")
