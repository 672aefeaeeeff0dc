"""The pipeline as it runs now: it obeys decisions and trains between them, on every rank the same.

    first stage's process     features of the batch (stored, or by the frozen layers), then F B ...
    other processes           labels only; what they work on comes through the pipeline

Weights, moments and the task head survive every change, for none of them is made anew: only the
cuts move.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from alkit.data import tree
from alkit.elastic.cache import Cache
from alkit.elastic.layout import Layout
from alkit.elastic.memory import Budget, Held
from alkit.elastic.network import Network
from alkit.elastic.settings import SCHEDULES, Settings
from alkit.elastic.stage import Replica, UnitStage
from alkit.elastic.units import Units, World, is_dropped, tensors_of
from alkit.engine.ranks import merged, run_ranks
from alkit.engine.reduction import shares
from alkit.engine.run import run_single
from alkit.schedule.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch came to, the same on all ranks but for seconds.

    Attributes:
        losses: (steps,), of the network's type.
        squares: for each layer, the sum over steps of its gradient's squared norm.
        timeline: of all workers.
        seconds: of this rank.
        counts: samples of all ranks: hits, advanced, misses.
        held: bytes of every rank.
    """

    losses: Tensor
    squares: Tensor
    timeline: Timeline
    seconds: float
    counts: dict[str, int]
    held: list[Held]


class Pipeline:
    """A network with all that its training changes.

    Args:
        x, y: of all samples.
        threads: operator threads of each worker.

    Attributes:
        running: the layout that runs; None before the first decision, see `layout`.
        cache: of what frozen layers make.
    """

    def __init__(
        self,
        network: Network,
        x: Any,
        y: Tensor,
        optimizer: torch.optim.Optimizer,
        *,
        settings: Settings,
        budget: Budget,
        world: World,
        threads: int,
    ) -> None:
        self.network, self.y, self.optimizer, self.threads = network, y, optimizer, threads
        self.settings, self.budget, self.world = settings, budget, world
        self.units = Units(network, optimizer, world)
        self.cache = Cache(network, x, world, wanted=settings.cache)
        self.running: Layout | None = None
        self.on_ranks = world.ranks > 1
        network.train()

    def obey(self, layout: Layout) -> str:
        """Change to a layout; every rank calls it. Returns what `Cache.follow` does."""
        self.running = layout
        self.units.freeze(layout.frozen)
        self.units.move(layout)
        self.world.regroup(layout)
        return self.cache.follow()

    @property
    def layout(self) -> Layout:
        """The layout now; there is one after the first decision."""
        assert self.running is not None
        return self.running

    def train(self, steps: Sequence[Tensor], *, epoch: int, first_step: int) -> Epoch:
        """Run an epoch; every rank calls it.

        Args:
            steps: the rows of each step's global batch.
        Raises:
            FloatingPointError: a loss or gradient is not finite.
            ValueError: activations do not fit into the budget of bytes.
        """
        start_s, layout = time.perf_counter(), self.layout
        # a last batch may have fewer samples than there would be micro-batches
        micro = min(layout.micro, min(map(len, steps)) // layout.replicas)
        replica = Replica(
            network=self.network,
            optimizer=self.optimizer,
            world=self.world,
            micro=micro * (1 if self.on_ranks else layout.replicas),
            epoch=epoch,
            first_step=first_step,
            clip=self.settings.clip,
            check_room=self._check_room,
        )
        self.cache.counts.clear()
        timeline = self._run(replica, steps)
        losses = torch.stack(replica.losses).cpu() if replica.losses else torch.zeros(0)
        if replica.losses and self.world.reduce is not None:
            losses = self.world.reduce(losses)
        # the replicas' gradients are the same
        squares = replica.squares[:-1] * (self.world.rank < layout.stages)
        names = ("hits", "advanced", "misses")
        counts = self.world.total(torch.tensor([self.cache.counts[name] for name in names]))
        return Epoch(
            losses=self.world.broadcast(losses, layout.stages - 1),
            squares=self.world.total(squares),
            timeline=timeline,
            seconds=time.perf_counter() - start_s,
            counts=dict(zip(names, counts.tolist(), strict=True)),
            held=[Held(**each) for each in self.world.gather(self._held(replica))],
        )

    def _run(self, replica: Replica, steps: Sequence[Tensor]) -> Timeline:
        layout, first = self.layout, self.network.first()
        schedule = SCHEDULES[self.settings.schedule](layout.stages, replica.micro)
        stages = []
        for index, (low, high) in enumerate(layout.bounds):
            updates = None if index else range(first, len(self.network.units))
            if self.on_ranks:
                updates = range(max(low, first), max(high, first))
            stage = UnitStage(
                replica,
                (low, high),
                is_first=index == 0,
                is_last=index == layout.stages - 1,
                wants_input_gradient=low > first,
                updates=updates,
            )
            stages.append(stage)
        batches = self._batches(replica, steps)
        if not self.on_ranks:
            return run_single(schedule, stages, batches, threads=self.threads)
        options: dict[str, Any] = {"pipelines": layout.replicas, "spare": True}
        return merged(run_ranks(schedule, stages, batches, threads=self.threads, **options))

    def _batches(
        self, replica: Replica, steps: Sequence[Tensor]
    ) -> Iterator[tuple[SimpleNamespace, list[Any]]]:
        """Yield (inputs, labels of every micro-batch and what each weighs).

        Inputs are wrapped, for all that each process has is labels.
        """
        for step in steps:
            rows, labels = self._own_parts(step, replica.micro)
            x = None
            if self.world.stage == 0:
                x = self.cache.features(rows) if self.layout.start else self.cache.inputs(rows)
            yield SimpleNamespace(x=x), labels

    def _own_parts(self, rows: Tensor, micro: int) -> tuple[Tensor, list[tuple[Tensor, float]]]:
        """Return this process's rows of a global batch, and (labels, weight) of its micro-batches.

        Replica r has the r-th of equal parts, so a change of their number leaves every global batch
        as it was. Weights are those of parts of it; replicas' gradients are added as a mean.
        """
        replicas = self.layout.replicas
        each = micro if self.on_ranks else micro // replicas
        own = tree.micro_batches(rows, replicas)
        every = [part for rank in own for part in tree.micro_batches(rank, each)]
        weights = shares(self.network.loss, [self.y[part] for part in every])
        if self.on_ranks:
            mine = slice(self.world.replica * micro, (self.world.replica + 1) * micro)
            every, weights = every[mine], [replicas * weight for weight in weights[mine]]
        labels = [(self.y[part], weight) for part, weight in zip(every, weights, strict=True)]
        return torch.cat(every), labels

    def _check_room(self, activations: int) -> None:
        """Refuse what a rank keeps for its backward if there is no room for it."""
        if self.on_ranks or self.layout.stages == 1:
            self.budget.check(self.layout, self.world.stage, activations)

    def _held(self, replica: Replica) -> dict[str, int]:
        """Return the bytes of this rank by part, as they are."""
        first, moments = self.network.first(), self.optimizer.state.values()
        there = [
            sum(t.nbytes for t in tensors_of(unit) if not is_dropped(t))
            for unit in self.network.units
        ]
        return {
            "weights": sum(there[first:]),
            "frozen": sum(there[:first]),
            "gradients": replica.gradients,
            "moments": sum(t.nbytes for own in moments for t in own.values() if torch.is_tensor(t)),
            "activations": replica.ledger.peak,
            "message": replica.gradients if self.world.reduce is not None else 0,
        }
