"""Elastic training in the one loop: before each epoch decide, change the layout, then train.

rank 0     gradient norms, progress -> rule -> how many layers are frozen ──► all ranks
all ranks  freeze · move units · regroup · store of features · train the epoch
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.data.arguments import Brief
from alkit.data.seeds import generator_for
from alkit.elastic.freeze import Observation, policy
from alkit.elastic.layout import Layout, Planner
from alkit.elastic.pipeline import Pipeline
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.plan import Plan
from alkit.engine.trainer import Row
from alkit.engine.trainer import Trainer as Base
from alkit.models.blocks import trainable
from alkit.schedule.timeline import Timeline

log = logging.getLogger(__name__)

SHOWN = 3  # steps of an epoch whose timeline is kept
EVALUATED = 256  # samples at once, at most


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """What elastic training leaves beside the record, the same on all ranks.

    Attributes:
        layouts: of every epoch.
        lines: a line for each change.
        beginnings: the first steps of every epoch's timeline, of this call.
        held: a row an epoch and rank, bytes by part, see `alkit.elastic.memory`; counted in the
            epoch's first step. Without ranks one process holds it all.
    """

    layouts: list[Layout]
    lines: list[str]
    beginnings: list[Timeline]
    held: pd.DataFrame


@dataclass(frozen=True)
class Trained:
    """What an epoch came to: losses (steps, 1, 1), timeline, wall seconds, columns of its row."""

    losses: Tensor
    timeline: Timeline
    seconds: float
    row: Row


def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the epoch's permutation, int64 (N,): a function of the seed and the epoch alone."""
    return torch.randperm(samples, generator=generator_for(seed, "order", epoch))


class Trainer(Base):
    """A run of elastic training, an epoch at a time.

    Args:
        pipeline: what runs.
        planner: of this network.
        plan: seed and epochs are read.
        drop_last: whether a smaller last batch is left out.

    Attributes:
        losses, norms: of all steps; of the layers' gradients, a row an epoch.
        layouts, lines, held: see `Details`.
    """

    def __init__(
        self, pipeline: Pipeline, planner: Planner, plan: Plan, *, drop_last: bool = False
    ) -> None:
        self.model, self.pipeline, self.planner = pipeline.network, pipeline, planner
        self.plan, self.drop_last = plan, drop_last
        self.rule = policy(pipeline.settings.freeze, pipeline.settings.alpha)
        self.losses: list[float] = []
        self.norms: list[list[float]] = []
        self.layouts: list[Layout] = []
        self.lines: list[str] = []
        self.held: list[dict[str, int]] = []
        self.beginnings: list[Timeline] = []

    @property
    def name(self) -> str:
        """The method."""
        return "elastic"

    def batches(self, plan: Plan, train: Any, epoch: int) -> Iterator[tuple[Tensor, None]]:
        """Yield the rows of each step's batch, of the layout that there is when it is asked for.

        The last one is smaller, or left out; one that has no sample for every replica joins the
        batch before it.
        """
        left, layout = order(len(train), plan.seed, epoch), self.pipeline.layout
        while len(left) >= (layout.batch if self.drop_last else 1):
            count = layout.batch
            if not self.drop_last and len(left) - count < layout.replicas:
                count = len(left)
            yield left[:count], None
            left = left[count:]

    def train(self, batches: Iterable[tuple[Any, Any]]) -> Trained:
        """Decide, and train for an epoch.

        Raises:
            FloatingPointError: a loss or gradient is not finite.
        """
        start_s, number = time.perf_counter(), len(self.layouts)
        self._decide(number)
        change_s, steps = time.perf_counter() - start_s, [rows for rows, _ in batches]
        epoch = self.pipeline.train(steps, epoch=number, first_step=len(self.losses))
        self.losses += epoch.losses.tolist()
        self.norms.append(self._norms(epoch.squares, len(steps)))
        self.held += [{"epoch": number, "rank": n} | e.plain() for n, e in enumerate(epoch.held)]
        self.beginnings.append(epoch.timeline.between(0, SHOWN - 1))
        samples, layout = sum(map(len, steps)), self.layouts[-1]
        row = {"step": len(self.losses)} | {
            name: getattr(layout, name)
            for name in ("frozen", "stages", "replicas", "micro", "batch")
        }
        row |= {"cached": self.pipeline.cache.now is not None, "train_s": epoch.seconds}
        row |= {"samples_per_s": samples / epoch.seconds, "change_s": change_s} | epoch.counts
        losses = epoch.losses.double().view(-1, 1, 1)
        return Trained(losses, epoch.timeline, time.perf_counter() - start_s, row)

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The network's loss."""
        return self.model.loss

    def judge(self, part: Any, metrics: Metrics | None) -> Judged:
        """Return what the network is worth on a part."""
        self.gather()
        return judge(self.model, part, loss=self.loss, batch_size=EVALUATED, metrics=metrics)

    def gather(self) -> None:
        """Bring all units together on every rank."""
        self.pipeline.units.gather()

    def row(self, trained: Trained) -> Row:
        """Return an epoch's columns; samples that were stored or not are those of all ranks."""
        return trained.row

    def shown(self, trained: Trained) -> dict[str, float]:
        """Return what the progress bar shows."""
        return {"loss": trained.losses.mean().item(), "frozen": trained.row["frozen"]}

    def named_optimizers(self) -> dict[str, Any]:
        """Return the one of all units."""
        return {"all": self.pipeline.optimizer}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, in any layout the same; every rank calls it."""
        self.gather()
        groups = self.pipeline.optimizer.param_groups
        return {
            "model": dict(self.model.state_dict()),
            "moments": self.pipeline.units.moments(),
            "groups": [{k: v for k, v in own.items() if k != "params"} for own in groups],
            "layouts": [asdict(layout) for layout in self.layouts],
            "found": {"losses": self.losses, "norms": self.norms, "held": self.held},
            "lines": self.lines,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of devices."""
        self.losses, self.norms, self.held = map(list, saved["found"].values())
        self.layouts = [Layout(**own) for own in saved["layouts"]]
        self.lines, units = list(saved["lines"]), self.pipeline.units
        if self.layouts:
            units.freeze(self.layouts[-1].frozen)
        self.model.load_state_dict(saved["model"])
        for group, own in zip(self.pipeline.optimizer.param_groups, saved["groups"], strict=True):
            group.update(own)
        for number, moments in saved["moments"].items():
            units.restore(int(number), moments)

    def details(self) -> Details:
        """Put together what was found beside the record."""
        return Details(self.layouts, self.lines, self.beginnings, pd.DataFrame(self.held))

    def _decide(self, number: int) -> None:
        """Have all ranks obey what rank 0's rule says."""
        pipeline, before = self.pipeline, self.layouts[-1] if self.layouts else None
        frozen = self.model.frozen
        if before is not None:
            norms = tuple(map(tuple, self.norms))
            seen = Observation(self.model.layers, frozen, number, norms, number / self.plan.epochs)
            frozen = pipeline.world.from_first(self.rule, seen)
        activations = max((row["activations"] for row in self.held), default=0)
        fits = partial(pipeline.budget.fits, activations=activations)
        layout = self.planner.at(frozen, pipeline.running, fits)
        trouble = pipeline.obey(layout)
        self.layouts.append(layout)
        if layout != before:
            self._say(f"[epoch {number} step {len(self.losses)}] {_changes(layout, before)}")
        if trouble:
            self._say(f"CACHE off  {trouble}")

    def _norms(self, squares: Tensor, steps: int) -> list[float]:
        """Return each layer's root mean squared gradient; -1 if nothing of an active one learns."""
        network, found = self.model, []
        for layer, square in enumerate(squares.tolist()):
            units = network.units[network.first(layer) or 1 : network.first(layer + 1)]
            count = sum(each.numel() for each in units.parameters())
            learns = layer < network.frozen or trainable(units)
            found.append(math.sqrt(square / steps / count) if learns else -1.0)
        return found

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if self.pipeline.world.is_first:
            log.info("%s", line)


def _changes(layout: Layout, before: Layout | None) -> str:
    """Return a layout beside the one before it, as in `frozen 4->7  stages 2->1`."""

    def change(name: str) -> str:
        now, then = getattr(layout, name), getattr(before, name, None)
        return f"{name} {now}" if then in (None, now) else f"{name} {then}->{now}"

    names = ("frozen", "stages", "replicas", "micro", "batch")
    return "  ".join([*map(change, names), "units " + "+".join(map(str, layout.counts))])
