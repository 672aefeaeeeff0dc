"""The loop around a trainer: decide, change the layout, train until the next decision.

rank 0     norms, progress -> rule -> plan -> decision ──► all ranks
all ranks  freeze · regroup · store of features · run the segment · share what was trained
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data import tree
from alkit.elastic import lines
from alkit.elastic.decider import Decider, foresee
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples, order, steps_of
from alkit.elastic.held import Held
from alkit.elastic.network import Network, right
from alkit.elastic.progress import Progress
from alkit.elastic.record import Record
from alkit.elastic.segment import Segment, SegmentResult
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import Trainer
from alkit.elastic.world import World
from alkit.engine import checkpoint as checkpoints
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.evaluate import right as right_class
from alkit.engine.heartbeat import beat
from alkit.engine.precision import autocast
from alkit.schedule.timeline import Timeline

__all__ = ["run"]

log = logging.getLogger(__name__)

SHOWN = 3  # steps of a segment whose timeline is kept
EVALUATED = 256  # samples at once, at most


def run(
    network: Network,
    train: Examples,
    settings: Settings,
    *,
    validation: Examples | None = None,
    test: Examples | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
    metrics: Metrics | None = None,
) -> Record:
    """Train on this process, or as one of the ranks of a group; arguments as of `train`.

    Raises:
        ValueError: settings that don't fit network, data or ranks, or another run's checkpoint.
        NotFinite: a loss or gradient is not finite; see `Settings.skip`.
        RanksDiffer: ranks began with different weights.
    """
    world = World(settings.executor)
    if settings.executor == "ranks":
        world.check_size(devices=settings.devices)
    for part in (validation, test):
        if part is not None and _metric(network, part) is network.metric:
            # what a metric cannot judge is said before the first step
            one = network.predict(part.inputs(torch.arange(1))), part.y[:1]
            network.metric(*tree.to_device(one, "cpu"))
    with autocast(settings.precision):
        loop = _Loop(network, train, settings, world, checkpoint, metrics)
        try:
            loop.begin()
            loop.go(validation, progress=progress and world.is_first)
            return loop.record(test)
        finally:
            loop.trainer.close()


def _metric(network: Network, part: Examples) -> Callable[[Any, Tensor], Tensor]:
    """Return the network's metric; where that is the one of classes and there are none, none is."""
    numbers = part.y.is_floating_point() and network.metric is right
    return right_class if numbers else network.metric


class _Loop:
    """The state of one run."""

    def __init__(
        self,
        network: Network,
        data: Examples,
        settings: Settings,
        world: World,
        checkpoint: Path | None,
        metrics: Metrics | None,
    ) -> None:
        planner = foresee(network, data, settings)
        self.metrics = metrics
        self.data, self.settings, self.checkpoint = data, settings, checkpoint
        least = settings.batch if settings.drop_last else 1
        self.total = settings.epochs * (len(data) // least) * least  # samples
        self.trainer = Trainer(network, data, settings, world, self._say)
        self.decider = Decider(self.trainer, planner, self.total, self._say)
        self.now = Progress(squares=[0.0] * network.layers)
        self.timeline = Timeline((), ())
        self.beginnings: list[Timeline] = []

    def begin(self) -> None:
        """Make sure that all ranks begin alike, or go on from a checkpoint."""
        self.trainer.check_ranks()
        path = self.checkpoint
        # the first rank's disk counts: others might be of machines that do not see it
        if path is not None and self.trainer.world.broadcast(path.exists()):
            saved = self.trainer.world.from_first(checkpoints.load, path)
            checkpoints.check(path, saved, self.trainer.state(), self.settings.plain())
            self.now = Progress.read(saved["progress"])
            if self.now.last is not None:
                self.trainer.freeze(self.now.last.frozen)
            self.trainer.load(saved)
        self.trainer.features.begin()

    def go(self, validation: Examples | None, *, progress: bool) -> None:
        """Train to the end."""
        epochs, now = self.settings.epochs, self.now
        options = {"total": epochs, "initial": now.epoch, "desc": "epochs"}
        with tqdm(**options, disable=not progress, leave=False) as bar:
            while now.epoch < epochs:
                before = now.epoch
                row = self._segment(validation)
                bar.set_postfix({"frozen": row["frozen"], "loss": f"{row['loss']:.3f}"})
                bar.update(now.epoch - before)
                if self.checkpoint is not None:
                    self._save(self.checkpoint)
        self.trainer.gather()

    def record(self, test: Examples | None) -> Record:
        """Put together what was found."""
        now, state = self.now, self.trainer.network.state_dict()
        tested = Judged() if test is None else self._judge(test)
        return Record(
            losses=torch.tensor(now.losses, dtype=torch.float64),
            history=pd.DataFrame(now.rows),
            messages=now.messages,
            lines=now.lines,
            timeline=self.timeline,
            beginnings=self.beginnings,
            skipped=now.skipped,
            test_correct=tested.correct,
            metrics=tested.values,
            held=pd.DataFrame(now.held),
            state={name: t.detach().to("cpu", copy=True) for name, t in state.items()},
        )

    def _save(self, path: Path) -> None:
        state = self.trainer.state()
        if self.trainer.world.is_first:
            told = {"progress": self.now.plain(), "settings": self.settings.plain()}
            checkpoints.save(path, state | told)

    # ---- one segment

    def _segment(self, validation: Examples | None) -> dict[str, Any]:
        beat("a decision")
        start_s = time.perf_counter()
        self._decide()
        change_s = time.perf_counter() - start_s
        segment = self._next_segment()
        result = self.trainer.train(segment)
        self._note(segment, result)
        row = self._row(segment, result, change_s)
        row |= self._evaluated(validation, segment.epoch)
        self.now.rows.append(row)
        self._say(lines.trained(row))
        self._note_held(row, result.held)
        return row

    def _decide(self) -> None:
        """Have all ranks obey rank 0's decision."""
        now, trainer = self.now, self.trainer
        due, plain = self.decider.look(now), None
        if trainer.world.is_first:
            plain = self.decider.decide(now, due=due).plain()
        decision = Decision.read(trainer.world.broadcast(plain))
        before = now.last
        same = before and (before.plan, before.cached) == (decision.plan, decision.cached)
        trainer.obey(decision)
        decision = replace(decision, cached=trainer.features.stored)  # it may not have been
        now.messages.append(decision)
        if not same:
            self._say(lines.decided(decision, before, trainer.network.layers))

    def _next_segment(self) -> Segment:
        now, own, plan = self.now, self.settings, self.trainer.plan
        now.turn(len(self.data), self._least)  # the batch has grown
        left = order(len(self.data), own.seed, now.epoch)[now.position :]
        rows = steps_of(left, plan.batch, plan.replicas, drop_last=own.drop_last)
        rows = rows[: own.every or len(rows)]
        first, ends = now.step, list(accumulate(map(len, rows), initial=now.samples))[1:]

        def factor(step: int) -> float:
            return plan.lr_scale * own.recipe.factor(ends[step - first], self.total)

        return Segment(rows, first, now.epoch, factor)

    @property
    def _least(self) -> int:
        """Samples that an epoch goes on with."""
        return self.trainer.plan.batch if self.settings.drop_last else 1

    def _note(self, segment: Segment, result: SegmentResult) -> None:
        now, count, samples = self.now, len(segment.rows), sum(map(len, segment.rows))
        now.step += count
        now.samples += samples
        now.position += samples
        now.turn(len(self.data), self._least)
        now.losses += result.losses.tolist()
        now.skipped += result.skipped
        now.squares = [a + b for a, b in zip(now.squares, result.squares.tolist(), strict=True)]
        now.since += count
        self.timeline = result.timeline
        self.beginnings.append(result.timeline.between(0, SHOWN - 1))

    def _note_held(self, row: dict[str, Any], held: Sequence[Held]) -> None:
        """Keep the bytes of every rank, and say them where they are new."""
        before = [old["total"] for old in self.now.held[-len(held) :]]
        if before != [each.total for each in held]:
            self._say(f"[epoch {row['epoch']} step {row['step']}] {lines.held(held)}")
        about = {"epoch": row["epoch"], "step": row["step"]}
        self.now.held += [about | {"rank": n} | each.plain() for n, each in enumerate(held)]

    def _row(self, segment: Segment, result: SegmentResult, change_s: float) -> dict[str, Any]:
        """Return the segment's row: phases are rank 0's and add up, samples those of all ranks."""
        plan = self.trainer.plan
        sizes = torch.tensor([len(rows) for rows in segment.rows])
        row = {
            "epoch": segment.epoch,
            "step": self.now.step,
            "frozen": plan.frozen,
            "stages": plan.stages,
            "replicas": plan.replicas,
            "micro": plan.micro,
            "batch": plan.batch,
            "cached": self.trainer.features.stored,
            "loss": float((result.losses * sizes).sum() / sizes.sum()),
            "samples": int(sizes.sum()),
            "train_s": result.seconds,
            "change_s": change_s,
            "samples_per_s": float(sizes.sum()) / result.seconds,
        }
        return row | result.phases | result.features

    def _evaluated(self, validation: Examples | None, epoch: int) -> dict[str, float]:
        """Evaluate at the end of an epoch, if it is one's turn."""
        now, own = self.now, self.settings
        turn = now.epoch == own.epochs or (epoch + 1) % own.eval_every == 0
        if validation is None or now.position > 0 or not turn:
            return {"eval_s": 0.0}
        start_s = time.perf_counter()
        self.trainer.gather()
        row = self._judge(validation).row("val")
        return row | {"eval_s": time.perf_counter() - start_s}

    def _judge(self, part: Examples) -> Judged:
        network, world = self.trainer.network, self.trainer.world
        size = min(EVALUATED, math.ceil(len(part) / world.ranks))
        options: dict[str, Any] = {"batch_size": size, "group": world, "metrics": self.metrics}
        own = _metric(network, part)
        return judge(network, part, loss=network.loss, metric=own, **options)

    def _say(self, line: str) -> None:
        self.now.lines.append(line)
        if self.trainer.world.is_first:
            log.info("%s", line)
