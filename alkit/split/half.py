"""Head and tail: neighbouring units with an optimiser of their own, as stages of the engine.

    forward    of a micro-batch (x, y, share): the head hands on the same, the tail has the loss
    send       what the other side is to have, as it is
    backward   adds the gradients of the batch's mean loss; the tail hands on that of its input
    update     steps with what has added up, whatever the micro-batches' sizes

Labels travel with the activations, for the server has no samples. A batch that is too small for all
of the schedule's micro-batches leaves the last ones empty. A half computes on the device that its
units are on; what it takes and gives is in the host's memory.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.arguments import given
from alkit.engine.device import place
from alkit.engine.modes import training
from alkit.engine.optimizers import Factory, made
from alkit.engine.random import noise_of
from alkit.engine.stage import Inputs
from alkit.engine.steps import check_reached
from alkit.split.settings import Settings

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(
    parameters: Iterable[nn.Parameter], lr: float = 0.01, momentum: float = 0.9
) -> torch.optim.Optimizer:
    """Return the optimiser of the experiments: SGD with momentum, no weight decay."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def factory_of(settings: Settings, own: Factory | None = None) -> Optimizer:
    """Return what makes the optimisers of both sides: as given, or the settings' SGD."""
    if own is not None:
        return partial(own, lr=settings.lr)
    return partial(sgd, lr=settings.lr, momentum=settings.momentum)


class Half:
    """Consecutive units of a network.

    Args:
        units: the half trains them in place.
        first: number of the first of them in the network, which seeds their randomness.
        stage: 0 takes batches, 1 what stage 0 hands on.
        is_last: it has the network's end, and the loss.
        seed: of dropout: a function of (seed, unit, device, step, micro).
        device: number of the device whose data passes through.

    Attributes:
        losses, right: of the batches since `begin`: mean losses, and samples classified correctly.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        optimizer: Optimizer = sgd,
        *,
        first: int = 0,
        stage: int = 0,
        is_last: bool = False,
        seed: int = 0,
        device: int = 0,
    ) -> None:
        self.units = nn.ModuleList(units)
        for unit in self.units:
            training(unit)
        self.first, self.stage, self.is_last = first, stage, is_last
        self.seed, self.device_number = seed, device
        self.returns = stage == 1 and first > 0
        self.optimizer = made(optimizer, self.units.named_parameters())
        self.inputs = Inputs(*self.units) if is_last else lambda x: x
        kept = self.units.state_dict()
        self.loose = {name: own for name, own in self.units.named_buffers() if name not in kept}
        self.parts: Sequence[Any] = ()  # micro-batches of the open batch
        self.flights: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin a row of batches with this step."""
        self.step = step
        self.losses, self.right = list[float](), 0

    def forward(self, payload: Any, batch: int, micro: int) -> tuple[Tensor, Tensor, float] | None:
        """Take a micro-batch (x, y, share of the batch), at stage 0 with the first one all.

        Raises:
            ValueError: whole numbers at a cut.
        """
        if self.stage == 0:
            self.parts = payload if micro == 0 else self.parts
            payload = self.parts[micro] if micro < len(self.parts) else None
        if micro == 0:
            self.loose = {name: self.units.get_buffer(name).clone() for name in self.loose}
        if payload is None:
            return None
        x, y, share = payload
        x, y = place((x, y), self.units)
        if self.returns and not x.is_floating_point():
            raise ValueError(
                f"unit {self.first - 1} gives {x.dtype}, through which no gradient comes back: cut"
                " after a unit that gives floats, or leave all units on one side"
            )
        x = x.detach().requires_grad_() if self.returns else x
        out, step = self.inputs(x), self.step + batch
        for at, unit in enumerate(self.units, self.first):
            with noise_of(unit, self.seed, "unit", at, self.device_number, step, micro):
                out = unit(out)
        if not self.is_last:
            self.flights[batch, micro] = x, out
            return out.detach().cpu(), y.cpu(), share
        loss = F.cross_entropy(out, y) * share
        self.right += int((out.detach().argmax(1) == y).sum())
        self.losses += [0.0] * (batch + 1 - len(self.losses))
        self.losses[batch] += float(loss.detach())
        self.flights[batch, micro] = x, loss
        return None

    def send(self, payload: Any, batch: int, micro: int) -> Any:
        """Hand on what this half has made."""
        return payload

    def backward(self, payload: Tensor | None, batch: int, micro: int) -> Tensor | None:
        """Take the gradient of the output, hand on that of the input.

        Raises:
            ValueError: none reaches the input.
        """
        x, out = self.flights.pop((batch, micro), (None, None))
        if x is None or out is None:
            return None
        if out.requires_grad:
            out.backward(None if self.is_last else place(payload, self.units))
        if not self.returns:
            return None
        if x.grad is None:
            raise ValueError(
                f"no gradient reaches unit {self.first - 1}: something after it detaches; take that"
                " out, or leave all units at the server (cut 0)"
            )
        return x.grad.cpu()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step with what has added up.

        Raises:
            FloatingPointError: the batch's loss is not finite.
            ValueError: a unit that can learn has no gradient after the first iteration, or training
                changes what is in no state.
        """
        if self.is_last and not math.isfinite(self.losses[batch]):
            raise FloatingPointError(
                f"the loss of device {self.device_number} in step {self.step + batch} is not"
                " finite: the training has diverged, lower lr"
            )
        if self.step + batch == 0:
            check_reached([*[nn.Identity()] * self.first, *self.units])
        for name, before in self.loose.items():
            if not torch.equal(self.units.get_buffer(name), before):
                at, _, own = name.partition(".")
                raise ValueError(
                    f"unit {int(at) + self.first} changes its buffer {own} in training, and its"
                    " state does not hold it, so nobody would average it: register it with"
                    " persistent=True"
                )
        self.flights.clear()  # of an empty head
        if self.optimizer is not None:
            self.optimizer.step()
        self.units.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of weights and buffers, by the names that the whole network gives them."""
        return state_of(self.units, self.first)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take this half's part of a network's state; the optimiser keeps its own."""
        for at, unit in enumerate(self.units, self.first):
            unit.load_state_dict({key: state[f"{at}.{key}"] for key in unit.state_dict()})


def state_of(units: Iterable[nn.Module], first: int = 0) -> dict[str, Tensor]:
    """Return a copy of units' weights and buffers on the host, named by their unit's number."""
    return {
        f"{at}.{name}": tensor.detach().to("cpu", copy=True)
        for at, unit in enumerate(units, first)
        for name, tensor in unit.state_dict().items()
    }


def check_units(units: Sequence[nn.Module], cuts: Iterable[int]) -> None:
    """Refuse what can't be averaged, and what both sides would train on their own.

    Raises:
        ValueError: names the first unit that keeps something else than real tensors, or what is
            shared.
    """
    for at, unit in enumerate(units):
        for name, own in unit.state_dict().items():
            if not isinstance(own, Tensor) or own.is_complex():
                raise ValueError(
                    f"unit {at} keeps {name}, {given(own)}, and what devices have is averaged: keep"
                    " real tensors alone, as parameters or buffers"
                )
    for cut in set(cuts):
        head, tail = (
            {id(own): name for unit in side for name, own in unit.named_parameters()}
            for side in (units[:cut], units[cut:])
        )
        if both := head.keys() & tail.keys():
            raise ValueError(
                f"head and tail would share a parameter ({head[both.pop()]}), each with a copy:"
                " untie it, or cut so that both uses are on one side"
            )
