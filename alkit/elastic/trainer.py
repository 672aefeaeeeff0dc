"""Elastic training in the one loop: before each epoch decide, change the layout, then train.

rank 0     norms, progress -> rule -> layout -> decision ──► all ranks
all ranks  freeze · regroup · store of features · run the segment · share what was trained
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.data.arguments import Brief
from alkit.elastic import lines
from alkit.elastic.decider import Decider, foresee
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples, order
from alkit.elastic.held import Held
from alkit.elastic.network import Network
from alkit.elastic.pipeline import Pipeline
from alkit.elastic.progress import Progress
from alkit.elastic.segment import Segment, SegmentResult
from alkit.elastic.settings import Settings
from alkit.elastic.world import World
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.plan import Plan
from alkit.engine.trainer import Row
from alkit.engine.trainer import Trainer as Base
from alkit.schedule.timeline import Timeline

log = logging.getLogger(__name__)

SHOWN = 3  # steps of a segment whose timeline is kept
EVALUATED = 256  # samples at once, at most
NOW = ("step", "frozen", "stages", "replicas", "micro", "batch", "cached")  # in a row, as they are


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """What elastic training leaves beside the record, the same on all ranks.

    Attributes:
        segments: a row an epoch. Seconds: train_s, which frozen_s, read_s, pipe_s, reduce_s and
            update_s of rank 0 add up to, and change_s of decisions. Epochs count from 0.
        messages: all decisions.
        lines: the log of rank 0.
        beginnings: the first steps of every segment's timeline, of this call.
        held: a row a segment and rank, bytes by part, see `alkit.elastic.held`; counted in the
            segment's first step. Without ranks one process holds it all.
    """

    segments: pd.DataFrame
    messages: list[Decision]
    lines: list[str]
    beginnings: list[Timeline]
    held: pd.DataFrame


@dataclass(frozen=True)
class Trained:
    """What an epoch came to: losses (steps, 1, 1), timeline, wall seconds, its segment's row."""

    losses: Tensor
    timeline: Timeline
    seconds: float
    row: Row


class Trainer(Base):
    """A run of elastic training, an epoch at a time.

    Args:
        data: the training part.

    Attributes:
        now: how far it is.
    """

    def __init__(self, network: Network, data: Examples, settings: Settings, world: World) -> None:
        planner = foresee(network, data, settings)
        self.model, self.data, self.settings = network, data, settings
        least = settings.batch if settings.drop_last else 1
        self.total = settings.epochs * (len(data) // least) * least  # samples
        self.pipeline = Pipeline(network, data, settings, world, self._say)
        self.decider = Decider(self.pipeline, planner, self.total)
        self.now = Progress(squares=[0.0] * network.layers)
        self.beginnings: list[Timeline] = []
        self.pipeline.check_ranks()

    @property
    def name(self) -> str:
        """The method."""
        return "elastic"

    def batches(self, plan: Plan, train: Any, epoch: int) -> Iterator[tuple[Tensor, None]]:
        """Yield the rows of each step's batch, of the layout that there is when it is asked for.

        The last one is smaller, or left out; one that has no sample for every replica joins the
        batch before it.
        """
        left, layout = order(len(self.data), self.settings.seed, epoch), self.pipeline.layout
        while len(left) >= (layout.batch if self.settings.drop_last else 1):
            count = layout.batch
            if not self.settings.drop_last and len(left) - count < layout.replicas:
                count = len(left)
            yield left[:count], None
            left = left[count:]

    def train(self, batches: Iterable[tuple[Any, Any]]) -> Trained:
        """Decide, and train for an epoch.

        Raises:
            NotFinite: a loss or gradient is not finite.
        """
        start_s, first, change_s = time.perf_counter(), len(self.now.losses), self._decide()
        timeline = self._segment([rows for rows, _ in batches], change_s)
        self.now.epoch += 1
        losses = torch.tensor(self.now.losses[first:], dtype=torch.float64).view(-1, 1, 1)
        return Trained(losses, timeline, time.perf_counter() - start_s, self.now.rows[-1])

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The network's loss."""
        return self.model.loss

    def judge(self, part: Any, metrics: Metrics | None) -> Judged:
        """Return what the network is worth on a part."""
        self.gather()
        own: dict[str, Any] = {"metric": self.model.metric, "batch_size": EVALUATED}
        return judge(self.model, part, loss=self.loss, metrics=metrics, **own)

    def gather(self) -> None:
        """Bring all units together on every rank."""
        self.pipeline.gather()

    def row(self, trained: Trained) -> Row:
        """Return an epoch's row. Phases are rank 0's and add up, samples those of all ranks."""
        last = trained.row
        first = [*NOW] if self.settings.steady else [*NOW, "lr"]
        names = [*first, *(each for each in last if each not in (*NOW, "epoch", "loss", "lr"))]
        return {name: last[name] for name in names}

    def shown(self, trained: Trained) -> dict[str, float]:
        """Return what the progress bar shows."""
        return {"loss": trained.losses.mean().item(), "frozen": trained.row["frozen"]}

    def named_optimizers(self) -> dict[str, Any]:
        """Return the one of all units, whose rates the recipe's factor multiplies."""
        return {"all": self.pipeline.optimizer.inner}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, in any layout the same; every rank calls it."""
        return self.pipeline.state() | {"progress": self.now.plain()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of devices."""
        self.now = Progress.read(saved["progress"])
        if self.now.last is not None:
            self.pipeline.freeze(self.now.last.frozen)
        self.pipeline.load(saved)

    def details(self) -> Details:
        """Put together what was found beside the record."""
        now = self.now
        found = pd.DataFrame(now.rows), pd.DataFrame(now.held)
        return Details(found[0], now.messages, now.lines, self.beginnings, found[1])

    def _decide(self) -> float:
        """Have all ranks obey rank 0's decision; return the seconds that it took."""
        start_s, now, pipeline = time.perf_counter(), self.now, self.pipeline
        self.decider.look(now)
        plain = self.decider.decide(now).plain() if pipeline.world.is_first else None
        decision = Decision.read(pipeline.world.broadcast(plain))
        before = now.last
        same = before and (before.layout, before.cached) == (decision.layout, decision.cached)
        pipeline.obey(decision)
        decision = replace(decision, cached=pipeline.features.stored)  # it may not have been
        now.messages.append(decision)
        if not same:
            self._say(lines.decided(decision, before, self.model.layers))
        return time.perf_counter() - start_s

    def _segment(self, rows: list[Tensor], change_s: float) -> Timeline:
        now, own = self.now, self.settings
        first, ends = now.step, list(accumulate(map(len, rows), initial=now.samples))[1:]

        def factor(step: int) -> float:
            return own.recipe.factor(ends[step - first], self.total)

        result = self.pipeline.train(Segment(rows, first, now.epoch, factor))
        self._note(rows, result)
        rate = self.pipeline.optimizer.inner.param_groups[0]["lr"] * factor(now.step - 1)
        row = self._row(rows, result, {"lr": rate, "change_s": change_s})
        now.rows.append(row)
        self._say(lines.trained(row))
        self._note_held(row, result.held)
        return result.timeline

    def _note(self, rows: list[Tensor], result: SegmentResult) -> None:
        now, samples = self.now, sum(map(len, rows))
        now.step += len(rows)
        now.samples += samples
        now.losses += result.losses.tolist()
        now.squares = [a + b for a, b in zip(now.squares, result.squares.tolist(), strict=True)]
        now.since += len(rows)
        self.beginnings.append(result.timeline.between(0, SHOWN - 1))

    def _note_held(self, row: Row, held: Sequence[Held]) -> None:
        """Keep the bytes of every rank, and say them where they are new."""
        before = [old["total"] for old in self.now.held[-len(held) :]]
        if before != [each.total for each in held]:
            self._say(f"[epoch {row['epoch']} step {row['step']}] {lines.held(held)}")
        about = {"epoch": row["epoch"], "step": row["step"]}
        self.now.held += [about | {"rank": n} | each.plain() for n, each in enumerate(held)]

    def _row(self, rows: list[Tensor], result: SegmentResult, known: Row) -> Row:
        layout = self.pipeline.layout
        sizes = torch.tensor([len(each) for each in rows])
        row = {
            "epoch": self.now.epoch,
            "step": self.now.step,
            "frozen": layout.frozen,
            "stages": layout.stages,
            "replicas": layout.replicas,
            "micro": layout.micro,
            "batch": layout.batch,
            "cached": self.pipeline.features.stored,
            "loss": float((result.losses * sizes).sum() / sizes.sum()),
            "samples": int(sizes.sum()),
            "train_s": result.seconds,
            "samples_per_s": float(sizes.sum()) / result.seconds,
        }
        return row | known | result.phases | result.features

    def _say(self, line: str) -> None:
        self.now.lines.append(line)
        if self.pipeline.world.is_first:
            log.info("%s", line)
