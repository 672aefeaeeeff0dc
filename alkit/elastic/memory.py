"""What the ranks of a layout will hold, calculated before the first step, against a budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from alkit.data import tree
from alkit.elastic.examples import Examples
from alkit.elastic.held import Held, bytes_of
from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.elastic.optim import Recipe
from alkit.elastic.segment import schedule_of
from alkit.elastic.sync import tensors_of
from alkit.engine.device import place
from alkit.engine.ledger import Ledger
from alkit.engine.precision import autocast


def under_way(kind: str, stages: int, micro: int, stage: int) -> int:
    """Return of how many micro-batches a stage keeps something at once."""
    now = most = 0
    for task in schedule_of(kind, stages, micro).one_batch(stage):
        now += {"forward": 1, "backward": -1}.get(task.kind, 0)
        most = max(most, now)
    return most


class Forecast:
    """What the ranks of a layout will hold, found by running micro-batches of the first samples.

    Weights, statistics and modes are as before then.

    Args:
        schedule: "1f1b" or "gpipe".
        budget: bytes that a rank may hold.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        recipe: Recipe,
        *,
        schedule: str,
        precision: str,
        budget: int,
    ) -> None:
        self.network, self.data, self.recipe = network, data, recipe
        self.schedule, self.precision, self.budget = schedule, precision, budget
        self.kept: dict[tuple[Layout, int], int] = {}

    def fits(self, layout: Layout) -> bool:
        """Whether all ranks of a layout stay within the budget."""
        return all(held.total <= self.budget for held in self.held(layout))

    def check(self, layout: Layout) -> None:
        """Raise a ValueError that says what does not fit, and what would help."""
        found = self.held(layout)
        most = max(found, key=lambda held: held.total)
        if most.total > self.budget:
            stage = found.index(most)
            raise ValueError(
                f"stage {stage} of {layout.stages} needs {most.total:,} bytes with {layout.frozen}"
                f" frozen layers ({most}) and memory_budget is {self.budget:,}: give more stages,"
                " a smaller batch, more micro-batches or a larger budget"
            )

    def held(self, layout: Layout) -> list[Held]:
        """Return what a rank of each stage will hold."""
        return [self._of(layout, stage) for stage in range(layout.stages)]

    def _of(self, layout: Layout, stage: int) -> Held:
        units, first = self.network.units, self.network.first(layout.frozen)
        low, high = layout.bounds[stage]
        active = [units[n] for n in range(max(low, first), high)]
        frozen = [units[n] for n in range(low, min(high, first))]
        if stage == 0:
            frozen += units[: layout.start]
        trained = {id(p): p for u in active for p in u.parameters() if p.requires_grad}.values()
        gradients = bytes_of(trained)
        return Held(
            weights=bytes_of(tensor for unit in active for tensor in tensors_of(unit)),
            frozen=bytes_of(tensor for unit in frozen for tensor in tensors_of(unit)),
            gradients=gradients,
            moments=self.recipe.moment_bytes(trained),
            activations=self._activations(layout, stage),
            message=gradients if layout.replicas > 1 else 0,
        )

    def _activations(self, layout: Layout, stage: int) -> int:
        if (layout, stage) not in self.kept:
            with _as_before(self.network, layout.frozen), autocast(self.precision):
                self.kept[layout, stage] = self._counted(layout, stage)
        return self.kept[layout, stage]

    def _counted(self, layout: Layout, stage: int) -> int:
        """Run the forwards of the micro-batches that a stage has under way at once, and count."""
        network, (low, high) = self.network, layout.bounds[stage]
        first, is_last = network.first(), stage == layout.stages - 1
        rows = torch.arange(layout.batch // layout.replicas)
        x = place(self.data.inputs(rows), network)
        ledger, left = Ledger(network), []
        count = under_way(self.schedule, layout.stages, layout.micro, stage)
        with torch.no_grad():
            x = network.run(x, 0, layout.start)
        cut = [tree.micro_batches(each, layout.micro) for each in (x, rows)]
        for micro, (own, part) in enumerate(islice(zip(*cut, strict=True), count)):
            key = (0, micro)
            with torch.no_grad():
                own = network.run(own, layout.start, max(low, min(first, high)), key)
            own = tree.map_tensors(lambda t: _entry(t, stage > 0, low > first), own)
            with ledger.recording():
                output = network.run(own, max(low, min(first, high)), high, key)
                if is_last:
                    y = place(self.data.y[part], network)
                    output = network.loss(output, y) / layout.micro
            left.append(output)
        return ledger.peak


def _entry(tensor: Tensor, travelled: bool, wants: bool) -> Tensor:
    """Return what a stage works on: what travelled lies alone, a slice of a batch does not."""
    own = tensor.detach()
    own = own.clone() if travelled else own
    return own.requires_grad_(wants and own.is_floating_point())


@contextmanager
def _as_before(network: Network, frozen: int) -> Iterator[None]:
    """Let a network run as it trains with so many frozen layers, and leave no trace of it."""
    before, training = network.frozen, network.training
    kept = [(buffer, buffer.clone()) for buffer in network.buffers()]
    network.frozen = frozen
    network.train()
    try:
        yield
    finally:
        network.frozen = before
        network.train(training)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
