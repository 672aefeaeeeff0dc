"""The optimiser of all active units, and a learning rate that counts samples.

There is one for the whole network, whatever the layout: it steps what has a gradient, and on a rank
that is its own stage. So moments survive every change of the layout; those of a frozen unit are
dropped, for moments and decay would go on moving it.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from alkit.data import tree
from alkit.elastic.network import Network
from alkit.engine.optimizers import Factory, made, step_at

# what is left of a rate at a share of a run
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: max(0.0, 1 - done),
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
STEP_BYTES = 4  # Adam counts the steps of each tensor
MOST_DECAY = 0.05  # of a weight by one step's decay, momentum included, before it is a mistake


@dataclass(frozen=True)
class Recipe:
    """How weights are updated.

    Attributes:
        optimizer: "adamw" or "sgd"; or a factory, called as `optimizer(parameters, lr=...)`.
        lr: at the top of the schedule.
        weight_decay: of matrices; biases, norms, class token and positions have none.
        momentum: of SGD.
        clip: largest norm of all gradients together; None for no limit.
        warmup: share of all samples over which the rate rises from 0.
        shape: of the rate after that: "constant", or down to 0 as "linear" or "cosine".
    """

    optimizer: str | Factory = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip: float | None = 1.0
    warmup: float = 0.06
    shape: str = "cosine"

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and self.optimizer not in ("adamw", "sgd"):
            raise ValueError(f"optimizer is {self.optimizer!r}: give adamw or sgd")
        if self.shape not in SHAPES:
            raise ValueError(f"shape is {self.shape!r}: give {', '.join(SHAPES)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(
                f"warmup is {self.warmup}: give a share from 0 up to, not including, 1"
            )
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip is {self.clip}: give a positive norm, or None")
        if self.lr <= 0 or self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"lr {self.lr}, weight_decay {self.weight_decay}, momentum {self.momentum}: lr must"
                " be positive, weight_decay not negative, momentum from 0 up to, not including, 1"
            )
        keeps = 1 - self.momentum if self.optimizer == "sgd" else 1.0
        if self.lr * self.weight_decay / keeps > MOST_DECAY:
            warnings.warn(
                f"lr {self.lr} times weight_decay {self.weight_decay} over 1 - momentum shrinks"
                f" weights by more than {MOST_DECAY:.0%} a step: training will collapse to zero",
                stacklevel=3,
            )

    def factor(self, samples: int, total: int) -> float:
        """Return the rate over `lr` for a step that ends at `samples` of `total` samples."""
        rising = self.warmup * total
        if samples < rising:
            return samples / rising
        return SHAPES[self.shape]((samples - rising) / max(1, total - rising))

    def moment_bytes(self, parameters: Iterable[nn.Parameter]) -> int:
        """Return the bytes of what the optimiser keeps for these parameters after a step."""
        if self.optimizer == "sgd":
            return sum(p.nbytes for p in parameters) if self.momentum else 0
        return sum(2 * p.nbytes + STEP_BYTES for p in parameters)

    def make(self, module: nn.Module) -> torch.optim.Optimizer:
        """Return an optimiser for a module's parameters."""
        if callable(self.optimizer):
            found = made(self.optimizer, module.named_parameters(), lr=self.lr)
            assert found is not None  # units that are not frozen have parameters
            return found
        own = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in own if _decays(p)], "weight_decay": self.weight_decay},
            {"params": [p for p in own if not _decays(p)], "weight_decay": 0.0},
        ]
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)
        return torch.optim.AdamW(groups, lr=self.lr, fused=True)


class Optimizer:
    """The optimiser of a network's active units, whose state can be had unit by unit.

    Attributes:
        inner: torch's.
    """

    def __init__(self, network: Network, recipe: Recipe) -> None:
        self.network, self.recipe = network, recipe
        self.inner = recipe.make(network.units[network.first() :])

    def drop_frozen(self) -> None:
        """Forget what has been frozen."""
        frozen = {id(p) for u in self.network.units[: self.network.first()] for p in u.parameters()}
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                if id(parameter) in frozen:
                    self.inner.state.pop(parameter, None)
            group["params"] = [p for p in group["params"] if id(p) not in frozen]

    def forget(self, number: int, *, but: Collection[int] = ()) -> None:
        """Drop the moments of a unit, but for those of parameters with these ids."""
        for parameter in self.network.units[number].parameters():
            if id(parameter) not in but:
                self.inner.state.pop(parameter, None)

    def step(self, factor: float) -> None:
        """Update what has a gradient at its group's rate times `factor`; clear the gradients."""
        step_at(self.inner, factor)
        self.inner.zero_grad(set_to_none=True)

    def state(self, number: int) -> dict[str, dict[str, Any]]:
        """Return the state of a unit, by the names of its parameters."""
        named = self.network.units[number].named_parameters()
        return {name: dict(self.inner.state[p]) for name, p in named if p in self.inner.state}

    def bytes(self) -> int:
        """Return the bytes of all moments that are there."""
        states = self.inner.state.values()
        return sum(t.nbytes for one in states for t in one.values() if isinstance(t, torch.Tensor))

    def restore(self, number: int, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take a unit's state over."""
        named = dict(self.network.units[number].named_parameters())
        for name, values in state.items():
            self.inner.state[named[name]] = tree.to_device(dict(values), named[name].device)


def _decays(parameter: nn.Parameter) -> bool:
    """Whether weights of this form decay: matrices, but no positions, whose first size is 1."""
    return parameter.dim() > 1 and parameter.shape[0] > 1
