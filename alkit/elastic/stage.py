"""One stage of the pipeline: some neighbouring units, forward, backward and update.

    forward    of a micro-batch; the first stage cuts the batch, the last one has the loss
    backward   adds to the gradients of the own units, hands on that of the input if someone below
               trains
    update     reduces over replicas, clips by the norm over all stages, steps

The engine decides when. Gradients are those of the mean loss over the global batch.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from alkit import tree
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizers

__all__ = ["NotFinite", "Shared", "UnitStage", "micro_batches"]


class NotFinite(FloatingPointError):
    """A loss or a gradient is not finite."""


@dataclass
class Shared:
    """What the stages of a replica share during a segment.

    Attributes:
        micro: micro-batches a batch.
        first_step: number of the segment's first step in the run.
        factor: of the learning rate, by the number of the step.
        replica: number of this one; noise differs between replicas.
        reduce: mean of a flat tensor over replicas, for a stage; None with one replica.
        add_up: sum of a number over the stages of other processes; None in one process.
        skip: leave an update out whose gradients are not finite, instead of raising.
        losses: a scalar a step.
        squares: for each layer, the sum over the segment's steps of its gradient's squared norm,
            before clipping; of the own units only.
        skipped: steps whose update was left out.
    """

    network: Network
    optimizers: Optimizers
    micro: int
    first_step: int
    factor: Callable[[int], float]
    replica: int = 0
    reduce: Callable[[Tensor], Tensor] | None = None
    add_up: Callable[[float], float] | None = None
    skip: bool = False
    losses: list[Tensor] = field(default_factory=list)
    squares: dict[int, float] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    scales: dict[int, float | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Flight:
    x: Any
    output: Any


class UnitStage:
    """Units low .. high - 1 as stage `index` of `stages`.

    Args:
        wants_input_gradient: whether a unit below trains.
        all_units: the units whose gradients the norm takes in, in this process.
    """

    def __init__(
        self,
        shared: Shared,
        bounds: tuple[int, int],
        *,
        is_first: bool,
        is_last: bool,
        wants_input_gradient: bool,
        all_units: range,
    ) -> None:
        self.shared, self.bounds = shared, bounds
        self.is_first, self.is_last = is_first, is_last
        self.wants_input_gradient, self.all_units = wants_input_gradient, all_units
        self.flights: dict[tuple[int, int], _Flight] = {}
        self.rest: Iterator[tuple[Any, Any]] = iter(())

    def forward(self, payload: tuple[Any, Any] | None, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (output, y); the last stage keeps the loss."""
        x, y = self._next(payload, micro)
        if not self.is_first:
            wants = self.wants_input_gradient
            x = tree.map_tensors(lambda t: _leaf(t, wants), x)
        network, step = self.shared.network, self.shared.first_step + batch
        part = self.shared.replica * self.shared.micro + micro
        output = network.run(x, *self.bounds, key=(step, part))
        if self.is_last:
            output = network.loss(output, y) / self.shared.micro
            self._note(output.detach(), step, micro)
        self.flights[batch, micro] = _Flight(x, output)
        return None if self.is_last else (tree.detach(output), y)

    def backward(self, payload: list[Tensor | None] | None, batch: int, micro: int) -> Any:
        """Take the gradients of the output's floating tensors, hand on those of the input's."""
        flight = self.flights.pop((batch, micro))
        roots = [t for t in tree.tensors(flight.output) if t.is_floating_point()]
        above = [None] * len(roots) if self.is_last else payload or []
        pairs = [
            (root, gradient)
            for root, gradient in zip(roots, above, strict=False)
            if root.requires_grad and (self.is_last or gradient is not None)
        ]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        if self.is_first:
            return None
        # a list even if it is empty: the stage below waits for a word
        floats = [t for t in tree.tensors(flight.x) if t.is_floating_point()]
        return [t.grad for t in floats] if self.wants_input_gradient else []

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the own units at this step's rate."""
        step = self.shared.first_step + batch
        if self.shared.reduce is not None:
            self._reduce()
        scale = self._scale(step)
        factor = self.shared.factor(step)
        for number in self._own():
            if scale is None:
                self.shared.network.units[number].zero_grad(set_to_none=True)
                continue
            if scale != 1.0:
                for parameter in self._trained(number):
                    parameter.grad.mul_(scale)
            self.shared.optimizers.step(number, factor)

    def _next(self, payload: tuple[Any, Any] | None, micro: int) -> tuple[Any, Any]:
        """Return the micro-batch: the first stage gets whole batches and cuts them itself."""
        if not self.is_first:
            return payload
        if micro == 0:
            self.rest = micro_batches(payload, self.shared.micro)
        return next(self.rest)

    def _own(self) -> Iterator[int]:
        first = self.shared.network.first()
        return (number for number in range(*self.bounds) if number >= first)

    def _trained(self, number: int) -> list[Any]:
        unit = self.shared.network.units[number]
        return [p for p in unit.parameters() if p.grad is not None]

    def _reduce(self) -> None:
        """Take the mean over all replicas, all tensors in one message."""
        own = [p for number in self._own() for p in self._trained(number)]
        if own:
            flat = self.shared.reduce(torch.cat([p.grad.flatten() for p in own]))
            for parameter, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
                parameter.grad.copy_(part.view_as(parameter))

    def _scale(self, step: int) -> float | None:
        """Return what to multiply gradients by, so that their norm is at most `clip`.

        None if the step is to be left out. In one process the first stage that comes reckons for
        all: the schedule lets no update begin before all gradients are there.
        """
        shared = self.shared
        with shared.lock:
            if step in shared.scales:
                return shared.scales[step]
            squares = {number: self._square(number) for number in self.all_units}
            total = sum(squares.values())
            if shared.add_up is not None:
                total = shared.add_up(total)
            scale = self._judged(step, total**0.5, squares)
            shared.scales = {step: scale}
            for number, square in squares.items():
                layer = shared.network.layer_of(number)
                if layer is not None and scale is not None:
                    shared.squares[layer] = shared.squares.get(layer, 0.0) + square
            return scale

    def _square(self, number: int) -> float:
        grads = [p.grad for p in self._trained(number)]
        if not grads:
            return 0.0
        return float(torch.stack(torch._foreach_norm(grads)).square().sum())

    def _judged(self, step: int, norm: float, squares: dict[int, float]) -> float | None:
        if not torch.isfinite(torch.tensor(norm)):
            where = max(squares, key=lambda n: (squares[n] != squares[n], squares[n]))
            if not self.shared.skip:
                raise NotFinite(
                    f"the gradient is not finite at step {step}: its norm is {norm}, that of"
                    f" {self.shared.network.name_of(where)} {squares[where] ** 0.5}; the learning"
                    f" rate is {self.shared.optimizers.recipe.lr * self.shared.factor(step):.3g}."
                    " Lower it, or set skip=True to leave such steps out"
                )
            self.shared.skipped.append(step)
            return None
        clip = self.shared.optimizers.recipe.clip
        return 1.0 if clip is None or norm <= clip else clip / (norm + 1e-6)

    def _note(self, loss: Tensor, step: int, micro: int) -> None:
        if not torch.isfinite(loss) and not self.shared.skip:
            raise NotFinite(
                f"the loss is {loss.item()} at step {step}, micro-batch {micro}; the learning rate"
                f" is {self.shared.optimizers.recipe.lr * self.shared.factor(step):.3g}. Lower it,"
                " or set skip=True to leave such steps out"
            )
        if micro:
            self.shared.losses[-1] = self.shared.losses[-1] + loss
        else:
            self.shared.losses.append(loss)


def micro_batches(payload: tuple[Any, Any], micro: int) -> Iterator[tuple[Any, Any]]:
    """Yield `micro` equal parts of a batch (x, y).

    Raises:
        ValueError: it does not divide.
    """
    size = tree.batch_size(payload)
    if size % micro:
        raise ValueError(f"a batch of {size} does not divide into {micro} micro-batches")
    step = size // micro
    for start in range(0, size, step):
        yield tree.map_tensors(lambda tensor, at=start: tensor[at : at + step], payload)


def _leaf(tensor: Tensor, wants: bool) -> Tensor:
    return tensor.detach().requires_grad_(wants and tensor.is_floating_point())
