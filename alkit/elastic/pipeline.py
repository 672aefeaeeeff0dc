"""The pipeline as it runs now: it obeys decisions and trains between them, on every rank the same.

    first stage's process     features of the batch (stored, or by the frozen layers), then F B ...
    other processes           labels only; what they work on comes through the pipeline

Weights, moments and the task head survive every change, for none of them is made anew: only the
cuts move.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from alkit.elastic import memory, sync
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples, parts_of
from alkit.elastic.features import Features
from alkit.elastic.held import Held
from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.segment import Segment, SegmentResult, schedule_of
from alkit.elastic.settings import Settings
from alkit.elastic.stage import Replica, UnitStage
from alkit.elastic.world import World
from alkit.engine.costs import Ledger
from alkit.engine.ranks import merged, run_ranks
from alkit.engine.reduction import shares
from alkit.engine.run import run_single, run_threads
from alkit.schedule.timeline import Timeline


class Pipeline:
    """A network with all that its training changes.

    Args:
        data: the training part.
        say: writes a line into the log.

    Attributes:
        running: the layout that runs; None before the first decision, see `layout`.
        features: of the frozen layers, stored or not.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        settings: Settings,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.network, self.data, self.settings, self.world = network, data, settings, world
        self.optimizer = Optimizer(network, settings.recipe)
        self.features = Features(network, data, settings, world, say)
        self.running: Layout | None = None
        self.on_ranks = settings.executor == "ranks"
        self.whole = True  # whether this rank has all weights; moments are of what it trains
        network.train()

    def obey(self, decision: Decision) -> None:
        """Change what the decision changes; every rank calls it."""
        before, self.running = self.spread, decision.layout
        self.freeze(decision.frozen)
        if self.spread is not None and before != self.layout:
            sync.move(self.network, self.optimizer, before, self.layout, self.world)
        self.let_go()
        if before not in (None, self.layout):
            self.check_ranks()
        self.world.regroup(self.layout)
        self.features.follow(decision)

    def freeze(self, frozen: int) -> None:
        """Train this many layers no more, and forget their moments."""
        self.network.freeze(frozen)
        self.optimizer.drop_frozen()

    @property
    def layout(self) -> Layout:
        """The layout now; there is one after the first decision."""
        assert self.running is not None
        return self.running

    @property
    def spread(self) -> Layout | None:
        """The layout that units are spread over ranks by; None while every process has them all."""
        return self.running if self.world.ranks > 1 else None

    @property
    def own(self) -> set[int]:
        """The units that this rank holds when it trains."""
        return sync.held(self.network, self.spread, self.world.rank)

    def train(self, segment: Segment) -> SegmentResult:
        """Run the steps of a segment; every rank calls it.

        Raises:
            NotFinite: a loss or gradient is not.
            ValueError: activations do not fit into the budget of bytes.
        """
        start_s = time.perf_counter()
        # a last batch may have fewer samples than there would be micro-batches
        micro = min(self.layout.micro, min(map(len, segment.rows)) // self.layout.replicas)
        replica = Replica(
            network=self.network,
            optimizer=self.optimizer,
            segment=segment,
            world=self.world,
            micro=micro * (1 if self.on_ranks else self.layout.replicas),
            check_room=self._check_room,
            ledger=Ledger(self.network),
        )
        timeline = self._run(replica)
        losses = self._of_last_stage(replica)
        squares = self.world.total(self._own_squares(replica))
        self.features.cache.settle()
        seconds = time.perf_counter() - start_s
        counters = self.features.cache.taken_counters()
        phases = {
            "frozen_s": counters.compute_s,
            "read_s": counters.read_s,
            "reduce_s": replica.reduce_s,
            "update_s": replica.update_s,
        }
        return SegmentResult(
            losses=losses,
            squares=squares,
            timeline=timeline,
            seconds=seconds,
            phases=phases | {"pipe_s": seconds - sum(phases.values())},
            features=self._totals(counters.samples_and_bytes()),
            held=[Held(**each) for each in self.world.gather(self._held(replica))],
        )

    def gather(self) -> None:
        """Give every rank all weights, until `let_go`; nobody has needed them before."""
        if not self.whole:
            sync.gather(self.network, self.layout, self.world)
            self.whole = True
            self.check_ranks()

    def let_go(self) -> None:
        """Keep of what was gathered the own units alone."""
        sync.keep(self.network, self.optimizer, self.own)
        self.whole = self.spread is None

    def check_ranks(self) -> None:
        """Compare the weights of all ranks that have a unit.

        Raises:
            RanksDiffer: names the first unit that differs.
        """
        own = range(len(self.network.units)) if self.whole else self.own
        sync.check_equal(self.network, own, self.world)

    def state(self) -> dict[str, Any]:
        """Return all that training changes, in any layout the same; every rank calls it."""
        self.gather()
        moments = sync.collect(self.network, self.optimizer, self.spread, self.world)
        groups = self.optimizer.inner.param_groups
        rates = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        return {"model": dict(self.network.state_dict()), "moments": moments, "rates": rates}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; as many layers as then have been frozen before."""
        self.network.load_state_dict(state["model"])
        for group, own in zip(self.optimizer.inner.param_groups, state["rates"], strict=True):
            group.update(own)
        for number, moments in state["moments"].items():
            self.optimizer.restore(int(number), moments)

    def close(self) -> None:
        """Leave nothing behind."""
        self.features.close()
        self.world.close()

    # ---- a segment

    def _run(self, replica: Replica) -> Timeline:
        own, layout, stages = self.settings, self.layout, self._stages(replica)
        schedule = schedule_of(own.schedule, layout.stages, replica.micro, joint=not self.on_ranks)
        work = (schedule, stages, self._batches(replica))
        if self.on_ranks:
            options: dict[str, Any] = {"pipelines": layout.replicas, "spare": True}
            return merged(run_ranks(*work, threads=own.threads, **options))
        run = run_single if own.executor == "single" else run_threads
        return run(*work, threads=own.threads)

    def _stages(self, replica: Replica) -> list[UnitStage]:
        """Make the stages; the units that an update steps are a rank's own, or all."""
        first, found = self.network.first(), []
        for index, (low, high) in enumerate(self.layout.bounds):
            own = range(max(low, first), max(high, first))
            found.append(
                UnitStage(
                    replica,
                    (low, high),
                    is_first=index == 0,
                    is_last=index == self.layout.stages - 1,
                    wants_input_gradient=low > first,
                    updates=own if self.on_ranks else range(first, len(self.network.units)),
                )
            )
        return found

    def _batches(self, replica: Replica) -> Iterator[tuple[SimpleNamespace, list[Any]]]:
        """Yield (inputs, labels of every micro-batch and what each weighs).

        Inputs are wrapped, for all that each process has is labels.
        """
        segment = replica.segment
        parts = [self._own_parts(rows, replica.micro) for rows in segment.rows]
        cache, in_front = self.features.cache, self.layout.start > 0
        for at, (rows, labels) in enumerate(parts):
            if self.on_ranks and self.world.stage > 0:
                yield SimpleNamespace(x=None), labels
                continue
            x = (cache.features if in_front else cache.raw)(rows, segment.epoch)
            if in_front and at + 1 < len(parts):
                cache.read_ahead(parts[at + 1][0], segment.epoch)
            yield SimpleNamespace(x=x), labels

    def _own_parts(self, rows: Tensor, micro: int) -> tuple[Tensor, list[tuple[Tensor, float]]]:
        """Return this process's rows of a global batch, and (labels, weight) of its micro-batches.

        Weights are those of parts of the global batch; replicas' gradients are added as a mean.
        """
        replicas = self.layout.replicas
        by_replica = parts_of(rows, replicas, micro if self.on_ranks else micro // replicas)
        every = [part for parts in by_replica for part in parts]
        weights = shares(self.network.loss, [self.data.y[part] for part in every])
        if self.on_ranks:
            own = slice(self.world.replica * micro, (self.world.replica + 1) * micro)
            every, weights = every[own], [replicas * weight for weight in weights[own]]
        labels = [(self.data.y[part], weight) for part, weight in zip(every, weights, strict=True)]
        return torch.cat(every), labels

    def _of_last_stage(self, replica: Replica) -> Tensor:
        """Return the means of the last stages' losses."""
        losses = torch.stack(replica.losses).cpu() if replica.losses else torch.zeros(0)
        if replica.losses and self.world.reduce is not None:
            losses = self.world.reduce(losses)
        found: Tensor = self.world.broadcast(losses, self.layout.stages - 1)
        return found

    def _own_squares(self, replica: Replica) -> Tensor:
        """Return the squared norms of the first replica's gradients; the others' are the same."""
        squares = torch.zeros(self.network.layers, dtype=torch.float64)
        if self.world.replica == 0 and self.world.stage < self.layout.stages:
            for layer, square in replica.squares.items():
                squares[layer] = square
        return squares

    def _check_room(self, activations: int) -> None:
        """Refuse what a rank keeps for its backward if there is no room for it."""
        if self.on_ranks or self.layout.stages == 1:
            memory.check(self.network, self.settings, self.layout, self.world.stage, activations)

    def _held(self, replica: Replica) -> dict[str, int]:
        """Return the bytes of this rank by part, as they are."""
        first = self.network.first()
        there = {
            number: sum(t.nbytes for t in sync.tensors_of(unit) if not sync.is_dropped(t))
            for number, unit in enumerate(self.network.units)
        }
        return {
            "weights": sum(size for number, size in there.items() if number >= first),
            "frozen": sum(size for number, size in there.items() if number < first),
            "gradients": replica.gradients,
            "moments": self.optimizer.bytes(),
            "activations": replica.ledger.peak,
            "message": replica.gradients if self.world.reduce is not None else 0,
        }

    def _totals(self, own: dict[str, int]) -> dict[str, int]:
        """Return sums over all ranks."""
        totals = self.world.total(torch.tensor(list(own.values())))
        return dict(zip(own, totals.tolist(), strict=True))
