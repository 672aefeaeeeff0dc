"""Train for an epoch in any mode."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.al.stages import Epoch, WholeStage
from alkit.base.arguments import check_whole
from alkit.engine import trainer
from alkit.engine.compiled import Compile
from alkit.engine.costs import balanced_cuts
from alkit.engine.device import cores
from alkit.engine.messages import Group
from alkit.engine.ranks import run_ranks
from alkit.engine.run import run_threads
from alkit.schedule import task as schedules
from alkit.schedule.flushed import block_by_block
from alkit.schedule.task import Schedule

AL_MODES = ("al", "al_m", "al_fm", "al_pipeline")
LOCAL_MODES = {"local": "al", "local_pipeline": "al_pipeline"}  # and whose order they run in


@dataclass(frozen=True, repr=False)
class Trained(trainer.Trained):
    """The results of an epoch.

    Losses are float (batches, layers, 2), associated and autoencoder; with bp (batches, 1, 1).
    """

    samples: int
    cuts: tuple[int, ...] = ()  # first layers of all pipeline workers but one; none if they're free
    head: Tensor | None = None  # losses of the head, float (batches,)
    eager: tuple[str, ...] = ()  # why compile="steps" left each layer as it is, "" where it didn't


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
            are free to take any task that may start. Ranks hold layers, by default as many each.
        capacity: of a pipeline: batches that may wait between two workers, or with free workers
            between two layers.
        seed: dropout and other noise are a function of it, the layer and the number of the batch.
        executor: "threads", or of a pipeline "ranks": call it on every rank with the same model
            and batches (see `alkit.launch`); all ranks end with all trained parts.
        compile: "steps" compiles forward and backward of each layer as one call without the
            interpreter's lock (`alkit.engine.compiled`); of backprop all of it. Bits are equal in
            all modes that run so. A layer that draws random numbers runs as it is.
    Raises:
        ValueError: unknown mode, no batches, or a batch that doesn't fit.
    """
    check_method(model, mode)
    mode = LOCAL_MODES.get(mode, mode)
    check_whole(workers=workers, threads=threads)
    _check(mode, cuts, executor, compile)
    group, run = Group(alone=executor == "threads"), Epoch(model, seed, compile)
    start_s, layers, stream = time.perf_counter(), len(run.stages), run.counted(batches)
    if executor == "ranks":
        if workers not in (None, group.ranks):
            raise ValueError(f"workers is {workers} and ranks {group.ranks}: a worker is a rank")
        if cuts is None:
            cuts = balanced_cuts([1.0] * layers, min(group.ranks, layers))
        schedule = schedules.al_pipeline(layers, cuts, capacity)
        timeline = run_ranks(schedule, run.stages, stream, threads=threads)
    else:
        if mode == "al_pipeline":
            workers = workers or max(1, cores() // threads)
        schedule = schedule_for(mode, layers, workers, cuts, capacity)
        timeline = run_threads(schedule, run.stages, stream, threads=threads)
    model.batches_trained.fill_(run.first_batch + run.batches)
    seconds = time.perf_counter() - start_s
    why = tuple(each.step.why for each in run.stages if isinstance(each, WholeStage))
    found = run.losses(), timeline, seconds, run.samples, tuple(cuts or ())
    return Trained(*found, head=run.head_losses(), eager=why)


def schedule_for(
    mode: str,
    layers: int,
    workers: int | None = None,
    cuts: Sequence[int] | None = None,
    capacity: int = 2,
) -> Schedule:
    """Return a mode's schedule; al_pipeline without `cuts` has free workers, or one a layer."""
    if mode in ("al_m", "al_fm"):
        # these modes only make sense with at least two workers: one of them runs the forwards
        count = None if workers is None else min(max(workers, 2), layers + 1)
        return getattr(schedules, mode)(layers, count)
    if mode == "al_pipeline":
        workers = workers or layers
        if cuts is None and 1 < workers < layers:
            return schedules.free_workers(schedules.al_pipeline(layers, None, capacity), workers)
        return schedules.al_pipeline(layers, [] if workers == 1 else cuts, capacity)
    return block_by_block(1) if mode == "bp" else schedules.al(layers)


def _check(mode: str, cuts: Any, executor: str, compile: Compile) -> None:
    if compile not in (False, "steps"):
        said = "give 'steps', or compile blocks by block.compile()"
        raise ValueError(f"compile is {compile!r}: {said}")
    if executor not in ("threads", "ranks"):
        raise ValueError(f"executor is {executor!r}: give threads or ranks")
    if mode != "al_pipeline" and (cuts is not None or executor == "ranks"):
        raise ValueError(f"cuts and ranks are for al_pipeline and local_pipeline, not for {mode}")
    if compile and mode in ("al_m", "al_fm"):
        said = f"which joins forward and backward, and {mode} runs forwards apart"
        raise ValueError(f"compile is {compile!r}, {said}")


def check_method(model: ALModel | BPModel, method: str) -> None:
    """Refuse the name of a method that doesn't fit a model."""
    allowed: Iterable[str] = AL_MODES
    if isinstance(model, BPModel):
        allowed = ("bp",)
    elif model.rule:
        allowed = LOCAL_MODES
    if method not in allowed:
        what = type(model).__name__
        what += f" by rule {rule!r}" if (rule := getattr(model, "rule", "")) else ""
        raise ValueError(f"unknown mode {method!r} for {what}: give {', '.join(allowed)}")
