"""The loop: decide, change the layout, train until the next decision.

    rank 0     norms, progress -> rule -> plan -> message ──► all ranks
    all ranks  freeze · regroup · store of features · run the segment · share what was trained

Weights, moments, the task head and the position in the data survive every change, for none of them
is made anew: only the cuts move.
"""

import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data.arguments import Brief
from alkit.elastic import saving
from alkit.elastic.cache import Cache
from alkit.elastic.decide import Decider, foresee
from alkit.elastic.evaluate import correct
from alkit.elastic.examples import Examples, order
from alkit.elastic.message import Transform
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.plan import Plan
from alkit.elastic.progress import Progress
from alkit.elastic.segment import Outcome, Steps, run_segment
from alkit.elastic.settings import Settings
from alkit.elastic.sync import check_equal, share
from alkit.elastic.world import World
from alkit.engine.folders import Home
from alkit.engine.heartbeat import beat
from alkit.schedule.timeline import Timeline

__all__ = ["Record", "run"]

log = logging.getLogger(__name__)

SHOWN = 3  # steps of a segment whose timeline is kept


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """What training left, the same on all ranks.

    Attributes:
        losses: double (steps,).
        history: a row a segment; an epoch is one, unless decisions are made every few steps.
            Seconds: train_s, which frozen_s, read_s, pipe_s, reduce_s and update_s of rank 0 add up
            to, change_s of decisions, eval_s.
        messages: all decisions.
        lines: the log of rank 0.
        timeline: of the last segment.
        beginnings: the first steps of every segment's timeline.
        skipped: steps that were left out, because their gradients were not finite.
        test_correct: the network's metric, float (N,), on the test part, after the last step; None
            without one.
        state: of the trained network, by its names, whatever the layout was.
    """

    losses: Tensor
    history: pd.DataFrame
    messages: list[Transform]
    lines: list[str]
    timeline: Timeline
    beginnings: list[Timeline]
    skipped: list[int]
    test_correct: Tensor | None
    state: dict[str, Tensor]


def run(
    network: Network,
    train: Examples,
    settings: Settings,
    *,
    validation: Examples | None = None,
    test: Examples | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
) -> Record:
    """Train on this process, or as one of the ranks of a group.

    Args:
        checkpoint: written after each segment; training goes on from it if it is there.
    Raises:
        ValueError: settings that don't fit network, data or ranks, or another run's checkpoint.
        NotFinite: a loss or gradient is not finite; see `Settings.skip`.
        RanksDiffer: ranks began with different weights.
    """
    world = World(settings.executor)
    if settings.executor == "ranks":
        world.check_size(devices=settings.devices)
    for part in (validation, test):
        if part is not None:  # what a metric cannot judge is said before the first step
            correct(network, Examples(part.inputs(torch.arange(1)), part.y[:1]))
    loop = _Loop(network, train, settings, world)
    try:
        loop.begin(checkpoint)
        loop.go(validation, checkpoint, progress=progress and world.rank == 0)
        right = None if test is None else correct(network, test, world)
    finally:
        loop.close()
    made = loop.progress
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    return Record(
        torch.tensor(made.losses, dtype=torch.float64), pd.DataFrame(made.rows), made.messages,
        made.lines, loop.timeline, loop.beginnings, made.skipped, right, state,
    )  # fmt: skip


class _Loop:
    """The state of one run."""

    def __init__(self, network: Network, data: Examples, settings: Settings, world: World) -> None:
        self.network, self.data, self.settings, self.world = network, data, settings, world
        self.optimizer = Optimizer(network, settings.recipe)
        self.cache = Cache(network, data.inputs)
        self.stored = False  # whether features are stored now
        self.generation = 0
        self.progress = Progress()
        self.plan: Plan | None = None
        self.unshared = False  # whether ranks have weights that the others have not
        self.timeline = Timeline((), ())
        self.beginnings: list[Timeline] = []
        self.progress.squares = [0.0] * network.layers
        self.home: Home | None = None  # rank 0's, for stored features
        foresee(network, data, settings)
        self.total = settings.epochs * (len(data) // settings.batch) * settings.batch
        self.decider = Decider(network, data, settings, self.total, self._say)

    def begin(self, checkpoint: Path | None) -> None:
        """Make sure that all ranks begin alike, or go on from a checkpoint."""
        self.network.train()
        check_equal(self.network, self.world)
        if checkpoint is not None and checkpoint.exists():
            self.progress = saving.load(
                checkpoint, self.network, self.optimizer, self.settings.plain()
            )
        if self.settings.cache:
            self.cache.folder = Path(self._made(self._folder))

    def go(self, validation: Examples | None, checkpoint: Path | None, *, progress: bool) -> None:
        """Train to the end."""
        bar = tqdm(total=self.settings.epochs, initial=self.progress.epoch, desc="epochs",
                   disable=not progress, leave=False)  # fmt: skip
        with bar:
            while self.progress.epoch < self.settings.epochs:
                before = self.progress.epoch
                row = self._segment(validation)
                bar.set_postfix({"frozen": row["frozen"], "loss": f"{row['loss']:.3f}"})
                bar.update(self.progress.epoch - before)
                if checkpoint is None:
                    continue
                self._share()
                if self.world.rank == 0:
                    saving.save(
                        checkpoint, self.network, self.optimizer, self.progress,
                        self.settings.plain(),
                    )  # fmt: skip
        self._share()

    def close(self) -> None:
        """Leave nothing behind."""
        self.cache.close()
        self.world.close()
        if self.home is not None:
            self.home.close()

    # ---- one segment

    def _segment(self, validation: Examples | None) -> dict[str, Any]:
        beat("a decision")
        start_s = time.perf_counter()
        due, plain = self.decider.look(self.progress), None
        if self.world.rank == 0:
            now = (self.progress, self.plan, due, self.stored, self.generation)
            plain = self.decider.decide(*now).plain()
        message = Transform.read(self.world.broadcast(plain))
        self._obey(message)
        changed_s = time.perf_counter() - start_s
        at = self.progress
        steps = self._steps()
        epoch = at.epoch
        start_s = time.perf_counter()
        outcome = run_segment(
            self.network, self.optimizer, self.data, self.cache, self.plan, steps, self.settings,
            self.world,
        )  # fmt: skip
        self.cache.settle()
        self.unshared = True
        train_s = time.perf_counter() - start_s
        self._count(steps, outcome.losses, outcome.squares, outcome.skipped)
        self.timeline = outcome.timeline
        self.beginnings.append(outcome.timeline.between(0, SHOWN - 1))
        row = self._row(epoch, outcome, train_s, changed_s)
        row |= self._looked(validation, epoch)
        at.rows.append(row)
        self._say(self._line(row))
        return row

    def _obey(self, message: Transform) -> None:
        """Change what the message changes."""
        at = self.progress
        before = at.last
        same = before is not None and _layout(before) == _layout(message)
        if not same:
            self._share()
        self.plan = Plan(
            message.frozen, tuple(message.counts), message.start, message.replicas, message.micro,
            message.batch, message.lr_scale,
        )  # fmt: skip
        self.network.freeze(message.frozen)
        self.optimizer.drop_frozen()
        self.world.regroup(self.plan)
        if not message.cached:
            self.cache.leave()
        elif message.generation != self.generation or not self.stored:
            message = replace(message, cached=self._new_store(message))
        self.stored, self.generation = message.cached, message.generation
        at.messages.append(message)
        if not same:
            self._say(message.line(before, self.network.layers))

    def _share(self) -> None:
        """Give every rank what was trained since the last time; nobody has needed it before."""
        if self.unshared:
            share(self.network, self.optimizer, self.plan, self.world)
            check_equal(self.network, self.world)
        self.unshared = False

    def _new_store(self, message: Transform) -> bool:
        """Begin a generation of features, if it can be; the one before the last is deleted."""

        def make() -> str:
            self.cache.make(
                message.generation, message.frozen, samples=len(self.data),
                variants=max(1, self.data.variants), dtype=self.settings.cache_dtype,
                quota_bytes=self.settings.cache_quota,
            )  # fmt: skip
            return "made"

        if not self._made(make):
            return False
        self.cache.join(message.generation, message.frozen)
        if self.world.rank == 0 and message.generation > 2:
            old = self.cache.folder / f"generation-{message.generation - 2}"
            shutil.rmtree(old, ignore_errors=True)
        return True

    def _made(self, make: Callable[[], str]) -> str:
        """Have rank 0 make what stored features need, and return its word on all ranks.

        If it cannot, training goes on without, which changes no result; no decision asks again.
        """
        word, trouble = "", ""
        if self.world.rank == 0:
            try:
                word = make()
            except OSError as error:
                trouble = str(error)
                log.warning("no features are stored, and training goes on: %s", trouble)
        word, trouble = self.world.broadcast((word, trouble))
        if trouble:
            self._say(f"CACHE off  {trouble}")
            self.cache.leave()
            self.decider.settings = replace(self.settings, cache=False)
        return word

    def _steps(self) -> Steps:
        at, batch = self.progress, self.plan.batch
        if len(self.data) - at.position < batch:  # it has grown
            at.epoch, at.position = at.epoch + 1, 0
        rows = order(len(self.data), self.settings.seed, at.epoch)[at.position :]
        count = len(rows) // batch
        if self.settings.every:
            count = min(count, self.settings.every)
        first, samples, scale = at.step, at.samples, self.plan.lr_scale

        def factor(step: int) -> float:
            done = samples + (step - first + 1) * batch
            return scale * self.settings.recipe.factor(done, self.total)

        return Steps(rows[: count * batch].split(batch), first, at.epoch, factor)

    def _count(self, steps: Steps, losses: Tensor, squares: Tensor, skipped: list[int]) -> None:
        at, count, batch = self.progress, len(steps.rows), self.plan.batch
        at.step += count
        at.samples += count * batch
        at.position += count * batch
        if len(self.data) - at.position < batch:
            at.epoch, at.position = at.epoch + 1, 0
        at.losses += losses.tolist()
        at.skipped += skipped
        at.squares = [a + b for a, b in zip(at.squares, squares.tolist(), strict=True)]
        at.since += count

    def _row(self, epoch: int, outcome: Outcome, train_s: float, change_s: float) -> dict[str, Any]:
        """Return the segment's row: phases are rank 0's and add up, samples those of all ranks."""
        plan, counters = self.plan, self.cache.taken_counters()
        phases = {
            "frozen_s": counters.compute_s, "read_s": counters.read_s,
            "reduce_s": outcome.reduce_s, "update_s": outcome.update_s,
        }  # fmt: skip
        phases["pipe_s"] = train_s - sum(phases.values())
        seen = torch.tensor([
            counters.hits, counters.advanced, counters.misses, counters.read_bytes,
            counters.written_bytes,
        ])  # fmt: skip
        names = ("hits", "advanced", "misses", "read_bytes", "written_bytes")
        totals = dict(zip(names, self.world.total(seen).tolist(), strict=True))
        samples = len(outcome.losses) * plan.batch
        return {
            "epoch": epoch, "step": self.progress.step, "frozen": plan.frozen,
            "stages": plan.stages, "replicas": plan.replicas, "micro": plan.micro,
            "batch": plan.batch, "cached": self.stored, "loss": float(outcome.losses.mean()),
            "train_s": train_s, "change_s": change_s, "samples_per_s": samples / train_s,
            **phases, **totals,
        }  # fmt: skip

    def _looked(self, validation: Examples | None, epoch: int) -> dict[str, float]:
        """Evaluate at the end of an epoch, if it is one's turn."""
        last = self.progress.epoch == self.settings.epochs
        ended = self.progress.position == 0
        if (
            validation is None
            or not ended
            or not (last or (epoch + 1) % self.settings.eval_every == 0)
        ):
            return {"val_acc": math.nan, "eval_s": 0.0}
        start_s = time.perf_counter()
        self._share()
        right = correct(self.network, validation, self.world)
        return {"val_acc": float(right.mean()), "eval_s": time.perf_counter() - start_s}

    def _line(self, row: dict[str, Any]) -> str:
        seen = row["hits"] + row["advanced"] + row["misses"]
        hit = f"  cache hit {row['hits'] / seen:.2f}" if seen else ""
        names = ("frozen_s", "read_s", "pipe_s", "reduce_s", "update_s")
        phases = " ".join(f"{name} {row[name]:.2f}" for name in names)
        return (
            f"[epoch {row['epoch']} step {row['step']}] TRAIN loss {row['loss']:.4f}"
            f"  samples_per_s {row['samples_per_s']:.0f}  train_s {row['train_s']:.2f} ({phases})"
            f"  change_s {row['change_s']:.2f}{hit}"
        )

    def _say(self, line: str) -> None:
        self.progress.lines.append(line)
        if self.world.rank == 0:
            log.info("%s", line)

    def _folder(self) -> str:
        """Make a folder for this run's features; all ranks use rank 0's."""
        self.home = Home(self.settings.cache_folder)
        return str(self.home.path)


def _layout(message: Transform) -> tuple[Any, ...]:
    return (message.frozen, message.counts, message.start, message.replicas, message.batch,
            message.cached)  # fmt: skip
