"""One stage of the pipeline: some neighbouring units, forward, backward and update.

    forward    of a micro-batch; the first stage cuts the batch, the last one has the loss
    backward   adds to the gradients of its units; sends one down if a unit below trains
    update     reduces over replicas, clips by the norm over all stages, steps

The engine decides when. Gradients are those of the mean loss over the global batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from alkit.base import tree
from alkit.elastic.layout import Layout
from alkit.elastic.settings import Settings
from alkit.elastic.units import Units
from alkit.engine.device import beside, place
from alkit.engine.optimizers import check_reached
from alkit.engine.random import noise_of
from alkit.engine.stage import Gradients, Graph, Inputs, leaf


def average(parameters: Sequence[Tensor], mean: Callable[[Tensor], Tensor]) -> None:
    """Give all replicas the mean of their gradients, in one message.

    A replica whose data didn't use a parameter (an expert that none of its samples chose) adds
    zeros; if no replica has a gradient of a parameter, it stays without one.
    """
    if not parameters:
        return
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    there = torch.tensor([float(p.grad is not None) for p in parameters])
    message = mean(torch.cat([*(each.flatten() for each in own), there.to(own[0])]))
    *parts, counts = message.split([*(p.numel() for p in parameters), len(own)])
    for p, part, count in zip(parameters, parts, counts.tolist(), strict=True):
        p.grad = part.view_as(p) if count else None


@dataclass(kw_only=True)
class Replica:
    """The data that stages of a replica share during an epoch, and their results.

    `squares` are, a layer, the sum over the steps of an epoch of its squared gradient norm, before
    clipping; of the own units only. The last number is of units outside layers.
    """

    units: Units
    settings: Settings
    layout: Layout
    micro: int  # micro-batches of a batch
    first_step: int  # number of the first step of the epoch in the run
    losses: list[Tensor] = field(default_factory=list)  # a scalar a step

    def __post_init__(self) -> None:
        self.network, self.world = self.units.network, self.units.world
        self.squares = torch.zeros(self.network.layers + 1, dtype=torch.float64)


class UnitStage:
    """Stage `index` of a replica; it steps its own units.

    In one process the first stage, whose backward ends last, steps for all.
    """

    parts = ()  # units are brought together where they are asked for

    def __init__(self, replica: Replica, index: int) -> None:
        network, layout = replica.network, replica.layout
        self.replica, self.bounds = replica, layout.bounds[index]
        self.is_first, self.is_last = index == 0, index == layout.stages - 1
        low, high = self.bounds
        first = network.first()
        self.wants_input_gradient = low > first
        self.updates = range(max(low, first), max(high, first))
        if replica.world.ranks == 1:
            self.updates = range(first, len(network.units) if self.is_first else first)
        self.steps = replica.world.ranks > 1 or self.is_first
        if self.is_last:
            beside(network.loss, network)
        own = {id(p): (n, p) for n in self.updates for p in network.units[n].parameters()}
        self.parameters = list(own.values())  # each once, also those that two units share
        self.flights: dict[tuple[int, int], Graph] = {}
        self.inputs = Inputs()
        self.rest: Iterator[Any] = iter(())  # micro-batches of the batch that the first stage cuts

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take (x, (labels, weight)), hand on (output, these); the last stage keeps the loss."""
        network, replica = self.replica.network, self.replica
        if self.is_first:
            if micro == 0:
                self.rest = _parts(payload[0].x, payload[1])
            payload = next(self.rest)
        x, own = place(payload[0], network), payload[1]
        if not self.is_first:
            x = tree.map_tensors(partial(leaf, wants=self.wants_input_gradient), x)
        key = replica.first_step + batch, replica.world.replica * replica.micro + micro
        output = network.run(self.inputs(x), *self.bounds, key=key)
        if self.is_last:
            with noise_of(network.loss, network.seed, "loss", *key):
                output = network.loss(output, place(own[0], network)) * own[1]
        self.flights[batch, micro] = Graph(x, output)
        if not self.is_last:
            return tree.detach(output), own
        if micro == 0:
            replica.losses.append(torch.zeros_like(output))
        replica.losses[-1] += output.detach()
        return None

    def backward(self, payload: Gradients | None, batch: int, micro: int) -> Gradients:
        """Take the gradients of floating output tensors, hand on those of the input tensors."""
        above = None if self.is_last else place(payload, self.replica.network) or []
        # a list even if it is empty: the stage below waits for a word
        return self.flights.pop((batch, micro)).backward(above)

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Clip all gradients by the norm over all stages, and step."""
        replica, world, optimizer = self.replica, self.replica.world, self.replica.units.optimizer
        if not self.steps:
            return
        if world.column is not None:
            average([each for _, each in self.parameters if each.requires_grad], world.reduce)
        if replica.first_step + batch == 0:
            check_reached(replica.network.units[n] for n in self.updates)
        trained = [(n, p.grad) for n, p in self.parameters if p.grad is not None]
        norm = world.add_up(self._squares(trained)) ** 0.5
        clip = replica.settings.clip
        if trained and clip is not None and norm > clip:
            torch._foreach_mul_([own for _, own in trained], clip / (norm + 1e-6))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _squares(self, trained: list[tuple[int, Tensor]]) -> float:
        """Note the squared norms of gradients by layer, and return their sum."""
        if not trained:
            return 0.0
        layers = [self.replica.network.layer_of(number) for number, _ in trained]
        norms = torch.stack(torch._foreach_norm([gradient for _, gradient in trained]))
        squares = norms.double().cpu().square()
        at = torch.tensor([-1 if layer is None else layer for layer in layers])
        self.replica.squares.index_put_((at,), squares, accumulate=True)
        return float(squares.sum())


def _parts(x: Any, labels: list[tuple[Tensor, float]]) -> Iterator[tuple[Any, Any]]:
    start = 0
    for own in labels:
        rows = slice(start, start := start + len(own[0]))
        yield tree.map_tensors(itemgetter(rows), x), own
