"""One stage of the pipeline: some neighbouring units, forward, backward and update.

    forward    of a micro-batch; the first stage cuts the batch, the last one has the loss
    backward   adds to the gradients of the own units, hands on that of the input if someone below
               trains
    update     reduces over replicas, clips by the norm over all stages, steps

The engine decides when. Gradients are those of the mean loss over the global batch.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from alkit.data import tree
from alkit.elastic.held import bytes_of
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.segment import Segment
from alkit.elastic.world import World
from alkit.engine.costs import Ledger
from alkit.engine.device import beside, place
from alkit.engine.random import noise_of_loss
from alkit.engine.reduction import mean_of_replicas
from alkit.engine.stage import Graph, Inputs, leaf
from alkit.engine.steps import check_reached


class NotFinite(FloatingPointError):
    """A loss or a gradient is not finite."""


@dataclass(kw_only=True)
class Replica:
    """What the stages of a replica have in common during a segment, and what they find.

    Attributes:
        micro: micro-batches of a batch.
        check_room: called in the first step with the bytes that autograd keeps.
        losses: a scalar a step.
        squares: for each layer, the sum over the segment's steps of its gradient's squared norm,
            before clipping; of the own units only.
        ledger, gradients: of the first step, what autograd kept and the bytes of all gradients.
        reduce_s, update_s: seconds in the means over replicas, and in updates beside them.
    """

    network: Network
    optimizer: Optimizer
    segment: Segment
    world: World
    micro: int
    check_room: Callable[[int], None]
    losses: list[Tensor] = field(default_factory=list)
    squares: dict[int, float] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    gradients: int = 0
    reduce_s: float = 0.0
    update_s: float = 0.0
    updated: int = -1  # the last step that was
    lock: threading.Lock = field(default_factory=threading.Lock)


class UnitStage:
    """Units low .. high - 1 as stage `index` of `stages`.

    Args:
        wants_input_gradient: whether a unit below trains.
        updates: the active units that this stage steps.
    """

    def __init__(
        self,
        replica: Replica,
        bounds: tuple[int, int],
        *,
        is_first: bool,
        is_last: bool,
        wants_input_gradient: bool,
        updates: range,
    ) -> None:
        self.replica, self.segment, self.bounds = replica, replica.segment, bounds
        self.is_first, self.is_last = is_first, is_last
        self.wants_input_gradient = wants_input_gradient
        units = replica.network.units
        if is_last:
            beside(replica.network.loss, replica.network)
        own = {id(p): (number, p) for number in updates for p in units[number].parameters()}
        self.parameters = list(own.values())  # each once, also what two units share
        self.flights: dict[tuple[int, int], Graph] = {}
        self.inputs = Inputs(*units[slice(*bounds)])
        self.rest: Iterator[Any] = iter(())  # micro-batches of the batch that the first stage cuts

    def forward(self, payload: tuple[Any, Any] | None, batch: int, micro: int) -> Any:
        """Take (x, (labels, weight)), hand on (output, these); the last stage keeps the loss."""
        x, own = self._next(payload, micro)
        x = place(x, self.replica.network)
        if not self.is_first:
            x = tree.map_tensors(partial(leaf, wants=self.wants_input_gradient), x)
        network, count = self.replica.network, self.replica.micro
        step, part = self.segment.first_step + batch, self.replica.world.replica * count + micro
        with nullcontext() if batch else self.replica.ledger.recording():
            output = network.run(self.inputs(x), *self.bounds, key=(step, part))
            if self.is_last:
                with noise_of_loss(network.loss, network.seed, "loss", step, part):
                    output = network.loss(output, place(own[0], network)) * own[1]
        self._check_finite(output, step, micro)
        if self.is_last:
            self._note(output.detach(), micro)
        self.flights[batch, micro] = Graph(x, output)
        return None if self.is_last else (tree.detach(output), own)

    def backward(self, payload: list[Tensor | None] | None, batch: int, micro: int) -> Any:
        """Take the gradients of the output's floating tensors, hand on those of the input's."""
        above = None if self.is_last else place(payload, self.replica.network) or []
        # a list even if it is empty: the stage below waits for a word
        return self.flights.pop((batch, micro)).backward(above)

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step at this step's rate; in one process the first stage that comes steps for all.

        The schedule lets no update begin there before all gradients are made.
        """
        step, replica = self.segment.first_step + batch, self.replica
        if batch == 0:
            own = [p.grad for _, p in self._trained() if p.grad is not None]
            with replica.lock:
                replica.gradients = max(replica.gradients, bytes_of(own))
            replica.check_room(replica.ledger.peak)
        start_s = time.perf_counter()
        if replica.world.reduce is not None:
            self._reduce(replica.world.reduce)
            replica.reduce_s += time.perf_counter() - start_s
        with replica.lock:
            if step == replica.updated:
                return
            replica.updated = step
            start_s = time.perf_counter()
            self._update(step)
            replica.update_s += time.perf_counter() - start_s

    def _next(self, payload: tuple[Any, Any] | None, micro: int) -> tuple[Any, Any]:
        """Return a micro-batch's inputs, its labels and what it weighs."""
        if not self.is_first:
            assert payload is not None  # what the stage below hands on
            return payload
        if micro == 0:
            assert payload is not None  # the batch
            self.rest = _parts(payload[0].x, payload[1])
        return next(self.rest)

    def _trained(self) -> list[tuple[int, nn.Parameter]]:
        """Return the parameters that have a gradient, with the numbers of their units."""
        return [pair for pair in self.parameters if pair[1].grad is not None]

    def _reduce(self, reduce: Callable[[Tensor], Tensor]) -> None:
        own = [each for _, each in self.parameters if each.requires_grad]
        for parameter, mean in zip(
            own, mean_of_replicas([p.grad for p in own], own, reduce), strict=True
        ):
            parameter.grad = mean

    def _update(self, step: int) -> None:
        """Clip all gradients by the norm over all stages, and step."""
        replica, trained = self.replica, self._trained()
        if not step:
            check_reached(replica.network.units[slice(*self.bounds)])
        grads = [p.grad for _, p in trained if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(grads)).tolist() if grads else []
        squares: dict[int, float] = {}
        for (number, _), norm in zip(trained, norms, strict=True):
            squares[number] = squares.get(number, 0.0) + norm * norm
        total = sum(squares.values())
        if replica.world.add_up is not None:
            total = replica.world.add_up(total)
        scale = self._judged(step, total**0.5, squares)
        for number, square in squares.items():
            layer = replica.network.layer_of(number)
            if layer is not None:
                replica.squares[layer] = replica.squares.get(layer, 0.0) + square
        if scale != 1.0 and grads:
            torch._foreach_mul_(grads, scale)
        replica.optimizer.step(self.segment.factor(step))

    def _judged(self, step: int, norm: float, squares: dict[int, float]) -> float:
        """Return what to multiply gradients by, so that their norm is at most the recipe's."""
        if not math.isfinite(norm):
            where = max(squares, key=lambda n: (squares[n] != squares[n], squares[n]))
            largest = f"{squares[where] ** 0.5} of {self.replica.network.name_of(where)}"
            raise NotFinite(
                f"the gradient is not finite at step {step} in epoch {self.segment.epoch}: its"
                f" norm is {norm}, and the largest here is {largest}; {self._advice(step)}"
            )
        clip = self.replica.optimizer.recipe.clip
        return 1.0 if clip is None or norm <= clip else clip / (norm + 1e-6)

    def _check_finite(self, output: Any, step: int, micro: int) -> None:
        """Raise at a loss that is not finite, or at a NaN in what this stage hands on."""
        if not torch.isfinite(output) if self.is_last else _has_nan(output):
            what = f"loss is {output.item()}" if self.is_last else "output of a stage is nan"
            raise NotFinite(
                f"the {what} in epoch {self.segment.epoch}, at step {step}, micro-batch {micro};"
                f" {self._advice(step)}"
            )

    def _note(self, loss: Tensor, micro: int) -> None:
        if micro:
            self.replica.losses[-1] = self.replica.losses[-1] + loss
        else:
            self.replica.losses.append(loss)

    def _advice(self, step: int) -> str:
        rate = self.replica.optimizer.recipe.lr * self.segment.factor(step)
        return f"the learning rate is {rate:.3g}: lower it"


def _parts(x: Any, labels: list[tuple[Tensor, float]]) -> Iterator[tuple[Any, Any]]:
    start = 0
    for own in labels:
        rows = slice(start, start := start + len(own[0]))
        yield tree.map_tensors(itemgetter(rows), x), own


def _has_nan(x: Any) -> bool:
    """Whether a number is none; infinite ones mask scores."""
    return any(t.is_floating_point() and bool(t.isnan().any()) for t in tree.tensors(x))
