"""What the ranks of a layout will hold, reckoned before the first step, against a budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from alkit.data import tree
from alkit.elastic.examples import Examples
from alkit.elastic.held import Held, bytes_of
from alkit.elastic.network import Network
from alkit.elastic.optim import Recipe
from alkit.elastic.plan import Plan
from alkit.elastic.segment import schedule_of
from alkit.elastic.sync import tensors_of
from alkit.engine.device import place
from alkit.engine.ledger import Ledger
from alkit.engine.precision import autocast

__all__ = ["Reckoner", "under_way"]


def under_way(kind: str, stages: int, micro: int, stage: int) -> int:
    """Return of how many micro-batches a stage keeps something at once."""
    now = most = 0
    for task in schedule_of(kind, stages, micro).one_batch(stage):
        now += {"forward": 1, "backward": -1}.get(task.kind, 0)
        most = max(most, now)
    return most


class Reckoner:
    """Reckons what the ranks of a layout will hold, by running micro-batches of the first samples.

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
        self.kept: dict[tuple[Plan, int], int] = {}

    def fits(self, plan: Plan) -> bool:
        """Whether all ranks of a layout stay within the budget."""
        return all(held.total <= self.budget for held in self.held(plan))

    def check(self, plan: Plan) -> None:
        """Raise a ValueError that says what does not fit, and what would help."""
        found = self.held(plan)
        most = max(found, key=lambda held: held.total)
        if most.total > self.budget:
            stage = found.index(most)
            raise ValueError(
                f"stage {stage} of {plan.stages} needs {most.total:,} bytes with {plan.frozen}"
                f" frozen layers ({most}) and memory_budget is {self.budget:,}: give more stages,"
                " a smaller batch, more micro-batches or a larger budget"
            )

    def held(self, plan: Plan) -> list[Held]:
        """Return what a rank of each stage will hold."""
        return [self._of(plan, stage) for stage in range(plan.stages)]

    def _of(self, plan: Plan, stage: int) -> Held:
        units, first = self.network.units, self.network.first(plan.frozen)
        low, high = plan.bounds[stage]
        active = [units[n] for n in range(max(low, first), high)]
        frozen = [units[n] for n in range(low, min(high, first))]
        if stage == 0:
            frozen += units[: plan.start]
        trained = {id(p): p for u in active for p in u.parameters() if p.requires_grad}.values()
        gradients = bytes_of(trained)
        return Held(
            weights=bytes_of(tensor for unit in active for tensor in tensors_of(unit)),
            frozen=bytes_of(tensor for unit in frozen for tensor in tensors_of(unit)),
            gradients=gradients,
            moments=self.recipe.moment_bytes(trained),
            activations=self._activations(plan, stage),
            message=gradients if plan.replicas > 1 else 0,
        )

    def _activations(self, plan: Plan, stage: int) -> int:
        if (plan, stage) not in self.kept:
            with _as_before(self.network, plan.frozen), autocast(self.precision):
                self.kept[plan, stage] = self._counted(plan, stage)
        return self.kept[plan, stage]

    def _counted(self, plan: Plan, stage: int) -> int:
        """Run the forwards of the micro-batches that a stage has under way at once, and count."""
        network, (low, high) = self.network, plan.bounds[stage]
        first, is_last = network.first(), stage == plan.stages - 1
        rows = torch.arange(plan.batch // plan.replicas)
        x = place(self.data.inputs(rows), network)
        ledger, left = Ledger(network), []
        count = under_way(self.schedule, plan.stages, plan.micro, stage)
        with torch.no_grad():
            x = network.run(x, 0, plan.start)
        cut = [tree.micro_batches(each, plan.micro) for each in (x, rows)]
        for micro, (own, part) in enumerate(islice(zip(*cut, strict=True), count)):
            key = (0, micro)
            with torch.no_grad():
                own = network.run(own, plan.start, max(low, min(first, high)), key)
            own = tree.map_tensors(lambda t: _entry(t, stage > 0, low > first), own)
            with ledger.recording():
                output = network.run(own, max(low, min(first, high)), high, key)
                if is_last:
                    y = place(self.data.y[part], network)
                    output = network.loss(output, y) / plan.micro
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
