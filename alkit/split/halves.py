"""The mathematics of the two sides: the head on a device, the tail on the server.

    head   forward(x)  -> activations     ...     backward(gradient)            update
    tail                  forward_backward(activations, labels) -> gradient     update

Gradients of micro-batches add up, each weighted by its share of the batch, so an update is that of
the whole batch, whatever the micro-batches' sizes (with BatchNorm up to its statistics). Until the
update nothing but running statistics has changed, so an iteration can be dropped.

A half computes on the device that its units are on; what it takes and gives is in the host's
memory.
"""

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.data import tree
from alkit.engine.device import place
from alkit.engine.modes import training
from alkit.engine.optimizers import Factory, made
from alkit.engine.random import noise_of
from alkit.engine.stage import Inputs
from alkit.engine.steps import check_reached
from alkit.split.settings import Training

Saved = dict[tuple[int, int], Any]  # states of optimisers, by round and cut
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(
    parameters: Iterable[nn.Parameter], lr: float = 0.01, momentum: float = 0.9
) -> torch.optim.Optimizer:
    """Return the optimiser of the experiments: SGD with momentum, no weight decay."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


class Pass(NamedTuple):
    """What the tail made of a micro-batch.

    Attributes:
        gradient: of the batch's mean loss, by the activations; None without a head.
        loss: this micro-batch's part of the batch's mean loss.
        right: samples whose highest score is their label's.
        forward_s: seconds that the forward took; the backward had the rest.
    """

    gradient: Tensor | None
    loss: float
    right: int
    forward_s: float = 0.0


def factory_of(settings: Training, own: Factory | None = None) -> Optimizer:
    """Return what makes the optimisers of both sides: as given, or the settings' SGD."""
    if own is not None:
        return partial(own, lr=settings.lr)
    return partial(sgd, lr=settings.lr, momentum=settings.momentum)


class Half:
    """Consecutive units with their own optimiser.

    Args:
        units: of the network; the half trains them in place.
        first: number of the first of them in the network, which seeds their randomness.
        seed: of dropout: a function of (seed, unit, device, step, micro).
        device: number of the device whose data passes through.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        optimizer: Optimizer = sgd,
        *,
        first: int = 0,
        seed: int = 0,
        device: int = 0,
    ) -> None:
        self.units = nn.ModuleList(units)
        for unit in self.units:
            training(unit)
        self.first, self.seed, self.device = first, seed, device
        self.make_optimizer = optimizer
        self.optimizer = self._fresh()
        kept = self.units.state_dict()
        self.loose = [name for name, _ in self.units.named_buffers() if name not in kept]
        self.step = 0  # of the open iteration
        self.buffers: dict[str, Tensor] = {}  # running statistics before it

    def run(self, x: Tensor, step: int, micro: int) -> Tensor:
        """Return the last unit's output, where the units are."""
        x = place(x, self.units)
        self.step = step
        if not self.buffers:
            self.buffers = {name: own.clone() for name, own in self.units.named_buffers()}
        for at, unit in enumerate(self.units, self.first):
            with noise_of(unit, self.seed, "unit", at, self.device, step, micro):
                x = unit(x)
        return x

    def update(self) -> None:
        """Step with what has added up; the iteration is closed.

        Raises:
            ValueError: a unit that can learn has no gradient after the first iteration, or training
                changes what is in no state.
        """
        if self.step == 0:
            check_reached([*[nn.Identity()] * self.first, *self.units])
        self._check_loose()
        if self.optimizer is not None:
            self.optimizer.step()
        self._close()

    def drop(self) -> None:
        """Forget the open iteration, as if it had never begun."""
        with torch.no_grad():
            for name, before in self.buffers.items():
                self.units.get_buffer(name).copy_(before)
        self._close()

    def state(self) -> dict[str, Tensor]:
        """Return weights and buffers by the names that the whole network gives them."""
        return {
            f"{int(at) + self.first}.{name}": _copied(tensor)
            for key, tensor in self.units.state_dict().items()
            for at, _, name in [key.partition(".")]
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take this half's part of a network's state; the optimiser keeps its own.

        Raises:
            RuntimeError: tensors are missing, or of other shapes.
        """
        own = {}
        for key in self.units.state_dict():
            at, _, name = key.partition(".")
            whole = f"{int(at) + self.first}.{name}"
            if whole not in state:
                raise RuntimeError(f"the state has no {whole}: it is of another network or cut")
            own[key] = state[whole]
        self.units.load_state_dict(own)

    def optimizer_state(self) -> dict[str, Any]:
        """Return a copy of the optimiser's state, such as momentum; empty without parameters."""
        own = self.optimizer
        return {} if own is None else dict(tree.map_tensors(_copied, own.state_dict()))

    def load_optimizer(self, state: Mapping[str, Any] | None, factor: float = 1.0) -> None:
        """Put a state back, None for a fresh optimiser, and set the rates by a factor."""
        self.optimizer = self._fresh()
        if state and self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(dict(state)))
        self.set_rates(factor)

    def set_rates(self, factor: float) -> None:
        """Set the rates to a factor of what the optimiser was made with."""
        if self.optimizer is not None:
            for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
                group["lr"] = base * factor

    def _fresh(self) -> torch.optim.Optimizer | None:
        found = made(self.make_optimizer, self.units.named_parameters())
        self.bases = [group["lr"] for group in getattr(found, "param_groups", ())]
        return found

    def _check_loose(self) -> None:
        for name in self.loose:
            if not torch.equal(self.units.get_buffer(name), self.buffers[name]):
                at, _, own = name.partition(".")
                raise ValueError(
                    f"unit {int(at) + self.first} changes its buffer {own} in training, and its"
                    " state does not hold it, so nobody would average it: register it with"
                    " persistent=True"
                )

    def _close(self) -> None:
        self.units.zero_grad(set_to_none=True)
        self.buffers = {}


class Head(Half):
    """The units of a device."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.open: dict[int, Tensor] = {}

    def forward(self, x: Tensor, step: int, micro: int) -> Tensor:
        """Return the activations (B, ...) to send, without their graph."""
        out = self.run(x, step, micro)
        if len(self.units):
            self.open[micro] = out
        return out.detach().cpu()

    def backward(self, gradient: Tensor, micro: int) -> None:
        """Add a micro-batch's gradients."""
        out = self.open.pop(micro)
        if out.requires_grad:
            out.backward(place(gradient, self.units))

    def drop(self) -> None:
        """Forget the open iteration, graphs included."""
        self.open.clear()
        super().drop()


class Tail(Half):
    """The units of the server for one device, or for all of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inputs = Inputs(*self.units)

    def forward_backward(
        self,
        x: Tensor,
        y: Tensor,
        share: float,
        step: int,
        micro: int,
        *,
        returns: bool = True,
    ) -> Pass:
        """Add a micro-batch's gradients, and return what the device needs.

        Args:
            x, y: activations (B, ...) and labels (B).
            share: of the batch's samples in this micro-batch, 0 to 1.
            returns: the gradient is wanted.
        """
        x, y = place((x, y), self.units)
        if returns:
            x = x.detach().requires_grad_()
        start_s = time.perf_counter()
        scores = self.run(self.inputs(x), step, micro)
        loss = F.cross_entropy(scores, y) * share
        forward_s = time.perf_counter() - start_s
        loss.backward()
        right = int((scores.detach().argmax(1) == y).sum())
        if returns and x.grad is None:
            raise ValueError(
                f"no gradient reaches unit {self.first - 1}: something after it detaches; take that"
                " out, or leave all units at the server (cut 0)"
            )
        gradient = None if x.grad is None else x.grad.cpu()
        return Pass(gradient, float(loss.detach()), right, forward_s)


def state_of(units: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return a copy of a whole network's weights and buffers, named as `Half.state` names them."""
    return {
        f"{at}.{name}": _copied(tensor)
        for at, unit in enumerate(units)
        for name, tensor in unit.state_dict().items()
    }


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def kept(saved: Saved, key: tuple[int, int], half: Half) -> Saved:
    """Return optimisers as of rounds' beginnings with a half's own.

    What is older than the round before goes. The given ones stay: a checkpoint may be reading them.
    """
    saved = saved | {key: half.optimizer_state()}
    return {own: state for own, state in saved.items() if own[0] >= key[0] - 1}
