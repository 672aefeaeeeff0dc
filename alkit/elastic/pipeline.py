"""An epoch of the pipeline in the layout that runs, on every rank the same.

first stage's process     outputs of frozen layers (stored, or made now), then F B ...
other processes           labels only; what they work on comes through the pipeline
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from alkit.data import tree
from alkit.elastic.cache import Cache
from alkit.elastic.layout import Layout
from alkit.elastic.memory import Budget, Held
from alkit.elastic.settings import SCHEDULES, Settings
from alkit.elastic.stage import Replica, UnitStage
from alkit.elastic.units import Units
from alkit.engine.ranks import merged, run_ranks
from alkit.engine.reduction import shares
from alkit.engine.run import run_single
from alkit.schedule.timeline import Timeline

COUNTS = ("hits", "advanced", "misses")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What an epoch came to, the same on all ranks but for seconds.

    Attributes:
        losses: (steps, 1, 1).
        timeline: of all workers.
        seconds: of this rank.
        row: columns of the history.
        squares: for each layer, the sum over steps of its gradient's squared norm.
        held: bytes of every rank.
    """

    losses: Tensor
    timeline: Timeline
    seconds: float
    row: dict[str, Any]
    squares: list[float]
    held: list[Held]


@dataclass(kw_only=True)
class Pipeline:
    """What trains a network's units.

    Attributes:
        y: labels of all samples.
        threads: operator threads of each worker.
    """

    units: Units
    cache: Cache
    y: Tensor
    settings: Settings
    budget: Budget
    threads: int

    def obey(self, layout: Layout) -> None:
        """Change to a layout; weights, moments and the head go through; every rank calls it."""
        self.units.freeze(layout.frozen)
        self.units.move(layout)
        self.cache.follow()

    def train(
        self, steps: Sequence[Tensor], layout: Layout, *, epoch: int, first_step: int
    ) -> Trained:
        """Run an epoch; every rank calls it.

        Args:
            steps: the rows of each step's global batch.
        Raises:
            FloatingPointError: a loss or gradient is not finite.
            ValueError: activations do not fit into the budget of bytes.
        """
        start_s, world = time.perf_counter(), self.units.world
        # a last batch may have fewer samples than there would be micro-batches
        micro = min(layout.micro, min(map(len, steps)) // layout.replicas)
        replica = Replica(
            units=self.units,
            layout=layout,
            micro=micro * (1 if world.ranks > 1 else layout.replicas),
            epoch=epoch,
            first_step=first_step,
            clip=self.settings.clip,
            check_room=partial(self._check_room, layout),
        )
        self.cache.counts.clear()
        timeline = self._run(replica, steps)
        losses = torch.stack(replica.losses).cpu() if replica.losses else torch.zeros(0)
        if replica.losses and world.reduce is not None:
            losses = world.reduce(losses)
        losses = world.broadcast(losses, layout.stages - 1)
        counts = world.total(torch.tensor([self.cache.counts[name] for name in COUNTS]))
        # the replicas' gradients are the same
        squares = world.total(replica.squares[:-1] * (world.rank < layout.stages))
        seconds, samples = time.perf_counter() - start_s, sum(map(len, steps))
        row = {"train_s": seconds, "samples_per_s": samples / seconds}
        return Trained(
            losses=losses.double().view(-1, 1, 1),
            timeline=timeline,
            seconds=seconds,
            row=row | dict(zip(COUNTS, counts.tolist(), strict=True)),
            squares=squares.tolist(),
            held=[Held(**each) for each in world.gather(self._held(replica))],
        )

    def _run(self, replica: Replica, steps: Sequence[Tensor]) -> Timeline:
        layout = replica.layout
        schedule = SCHEDULES[self.settings.schedule](layout.stages, replica.micro)
        stages = [UnitStage(replica, index) for index in range(layout.stages)]
        work: Any = (schedule, stages, self._batches(replica, steps))
        if self.units.world.ranks == 1:
            return run_single(*work, threads=self.threads)
        options: dict[str, Any] = {"pipelines": layout.replicas, "spare": True}
        return merged(run_ranks(*work, threads=self.threads, **options))

    def _batches(
        self, replica: Replica, steps: Sequence[Tensor]
    ) -> Iterator[tuple[SimpleNamespace, list[Any]]]:
        """Yield (inputs, labels of every micro-batch and what each weighs).

        Inputs are wrapped, for all that each process has is labels.
        """
        for step in steps:
            rows, labels = self._own_parts(step, replica)
            x = None
            if self.units.world.stage == 0:
                made = replica.layout.start > 0
                x = self.cache.features(rows) if made else self.cache.inputs(rows)
            yield SimpleNamespace(x=x), labels

    def _own_parts(
        self, rows: Tensor, replica: Replica
    ) -> tuple[Tensor, list[tuple[Tensor, float]]]:
        """Return this process's rows of a global batch, and (labels, weight) of its micro-batches.

        Replica r has the r-th of equal parts, so a change of their number leaves every global batch
        as it was. Weights are those of parts of it; replicas' gradients are added as a mean.
        """
        replicas, micro, world = replica.layout.replicas, replica.micro, replica.world
        each = micro if world.ranks > 1 else micro // replicas
        own = tree.micro_batches(rows, replicas)
        every = [part for rank in own for part in tree.micro_batches(rank, each)]
        weights = shares(self.units.network.loss, [self.y[part] for part in every])
        if world.ranks > 1:
            mine = slice(world.replica * micro, (world.replica + 1) * micro)
            every, weights = every[mine], [replicas * weight for weight in weights[mine]]
        labels = [(self.y[part], weight) for part, weight in zip(every, weights, strict=True)]
        return torch.cat(every), labels

    def _check_room(self, layout: Layout, activations: int) -> None:
        """Refuse what a rank keeps for its backward if there is no room for it."""
        if self.units.world.ranks > 1 or layout.stages == 1:
            self.budget.check(layout, self.units.world.stage, activations)

    def _held(self, replica: Replica) -> dict[str, int]:
        """Return the bytes of this rank by part, as they are."""
        first, (there, moments) = self.units.network.first(), self.units.held()
        return {
            "weights": sum(there[first:]),
            "frozen": sum(there[:first]),
            "gradients": replica.gradients,
            "moments": moments,
            "activations": replica.ledger.peak,
            "message": replica.gradients if replica.world.reduce is not None else 0,
        }
