"""Elastic training in the one loop: before each epoch decide, change the layout, then train.

rank 0     gradient norms, progress -> rule -> how many layers are frozen ──► all ranks
all ranks  freeze · move units · regroup · store of outputs · train the epoch
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from alkit.base.arguments import Brief
from alkit.base.seeds import generator_for
from alkit.data.parts import Pairs
from alkit.elastic.cache import Cache
from alkit.elastic.freeze import Observation, policy
from alkit.elastic.layout import Layout, Planner
from alkit.elastic.pipeline import Trained, run_epoch
from alkit.elastic.settings import Settings
from alkit.elastic.stage import Replica
from alkit.elastic.units import Units
from alkit.engine import trainer
from alkit.engine.trainer import Plan, Row
from alkit.schedule.timeline import Timeline

SHOWN = 3  # steps of an epoch whose timeline is kept
OF_LAYOUT = ("frozen", "stages", "replicas", "micro", "batch")  # columns of the history


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """The part of elastic training in the record, the same on all ranks."""

    layouts: list[Layout]  # of every epoch
    beginnings: list[Timeline]  # the first steps in the timeline of every epoch, of this call


def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation of an epoch, int64 (N,): a function only of the seed and the epoch."""
    return torch.randperm(samples, generator=generator_for(seed, "order", epoch))


@dataclass(kw_only=True)
class Trainer(trainer.Trainer):
    """A run of elastic training, an epoch at a time; `Details` explains its results."""

    units: Units
    data: Pairs
    settings: Settings
    planner: Planner
    epochs: int  # of the whole run
    threads: int
    drop_last: bool  # is a smaller last batch left out
    losses: list[float] = field(default_factory=list)  # of all steps
    norms: list[list[float]] = field(default_factory=list)  # of gradients of layers, a row an epoch
    layouts: list[Layout] = field(default_factory=list)
    beginnings: list[Timeline] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model, self.world = self.units.network, self.units.world
        self.rule = policy(self.settings.freeze, self.settings.alpha)
        wanted = self.settings.cache and self.settings.pipe
        self.cache = Cache(self.model, self.data.x, self.world, wanted=wanted)

    def batches(self, plan: Plan, train: Any, epoch: int) -> Iterator[tuple[Tensor, None]]:
        """Yield the rows of the batch of each step, in the layout at the time of the request.

        A last one that has no sample for every replica joins the batch before it.
        """
        left, layout = order(len(train), plan.seed, epoch), self.layouts[-1]
        while len(left) >= (layout.batch if self.drop_last else 1):
            count = layout.batch
            if not self.drop_last and len(left) - count < layout.replicas:
                count = len(left)
            yield left[:count], None
            left = left[count:]

    def train(self, batches: Iterable[tuple[Any, Any]]) -> Trained:
        """Decide, and train for an epoch."""
        start_s, epoch = time.perf_counter(), len(self.layouts)
        layout = self._decided(epoch)
        self.units.freeze(layout.frozen)
        self.units.move(layout)
        self.cache.follow()
        self.layouts.append(layout)
        change_s, steps = time.perf_counter() - start_s, [rows for rows, _ in batches]
        # a last batch may have fewer samples than there would be micro-batches
        micro = min(layout.micro, min(map(len, steps)) // layout.replicas)
        replica = Replica(
            units=self.units,
            settings=self.settings,
            layout=layout,
            micro=micro * (1 if self.world.ranks > 1 else layout.replicas),
            first_step=len(self.losses),
        )
        found = run_epoch(replica, steps, self.cache, self.data.y, self.threads)
        self.losses += found.losses.flatten().tolist()
        self.norms.append(self._norms(found.squares, len(steps)))
        self.beginnings.append(found.timeline.between(0, SHOWN - 1))
        row = {"step": len(self.losses)} | {name: getattr(layout, name) for name in OF_LAYOUT}
        row |= {"cached": self.cache.now is not None, "change_s": change_s} | found.row
        return replace(found, row=row, seconds=time.perf_counter() - start_s)

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of the network."""
        return self.model.loss

    def gather(self) -> None:
        """Bring all units together on every rank."""
        self.units.gather()

    def row(self, trained: Trained) -> Row:
        """Return an epoch's columns; samples that were stored or not are those of all ranks."""
        return trained.row

    def named_optimizers(self) -> dict[str, Any]:
        """Return the one of all units."""
        return {"all": self.units.optimizer}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, in any layout the same; every rank calls it."""
        self.gather()
        layouts = [asdict(layout) for layout in self.layouts]
        found = {"losses": self.losses, "norms": self.norms, "layouts": layouts}
        model = dict(self.model.state_dict())
        return {"model": model, "units": self.units.state(), "found": found}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state that `state` returned, on any number of devices."""
        found = saved["found"]
        self.losses, self.norms = found["losses"], found["norms"]
        self.layouts = [Layout(**own) for own in found["layouts"]]
        self.units.freeze(self.layouts[-1].frozen if self.layouts else self.model.frozen)
        self.model.load_state_dict(saved["model"])
        self.units.load(saved["units"])

    def _decided(self, epoch: int) -> Layout:
        """Return the layout that all ranks obey: the rule on rank 0 says how many layers freeze."""
        frozen = self.model.frozen
        if epoch:
            norms = tuple(map(tuple, self.norms))
            seen = Observation(self.model.layers, frozen, epoch, norms, epoch / self.epochs)
            frozen = self.world.from_first(self.rule, seen)
        return self.planner.at(frozen, self.units.layout)

    def _norms(self, squares: list[float], steps: int) -> list[float]:
        """Return the root mean squared gradient by layer; -1 if nothing of an active one learns."""
        network, found = self.model, []
        for layer, square in enumerate(squares):
            units = network.units[network.first(layer) or 1 : network.first(layer + 1)]
            count = sum(each.numel() for each in units.parameters())
            learns = layer < network.frozen or any(p.requires_grad for p in units.parameters())
            found.append(math.sqrt(square / steps / count) if learns else -1.0)
        return found
