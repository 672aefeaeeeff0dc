"""An optimiser a unit, a learning rate that counts samples, and one norm to clip by.

A unit keeps its optimiser wherever it runs, so moments survive every change of the layout; a frozen
unit's is dropped, for moments and decay would go on moving it.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from alkit.elastic.network import Network

__all__ = ["Optimizers", "Recipe"]

SHAPES = ("constant", "linear", "cosine")
MOST_DECAY = 0.05  # of a weight by one step's decay, momentum included, before it is a mistake


@dataclass(frozen=True)
class Recipe:
    """How weights are updated.

    Attributes:
        optimizer: "adamw" or "sgd".
        lr: at the top of the schedule.
        weight_decay: of matrices; biases, norms, class token and positions have none.
        momentum: of SGD.
        clip: largest norm of all gradients together; None for no limit.
        warmup: share of all samples over which the rate rises from 0.
        shape: of the rate after that: "constant", or down to 0 as "linear" or "cosine".
    """

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip: float | None = 1.0
    warmup: float = 0.06
    shape: str = "cosine"

    def __post_init__(self) -> None:
        if self.optimizer not in ("adamw", "sgd"):
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
        done = (samples - rising) / max(1, total - rising)
        if self.shape == "constant":
            return 1.0
        return max(0.0, 1 - done) if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2

    def make(self, unit: nn.Module) -> torch.optim.Optimizer | None:
        """Return an optimiser for a unit's parameters; None if it has none to train."""
        own = [p for p in unit.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in own if _decays(p)], "weight_decay": self.weight_decay},
            {"params": [p for p in own if not _decays(p)], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if not groups:
            return None
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)
        return torch.optim.AdamW(groups, lr=self.lr, fused=True)


class Optimizers:
    """The optimisers of a network's active units."""

    def __init__(self, network: Network, recipe: Recipe) -> None:
        self.network, self.recipe = network, recipe
        self.by_unit = {
            number: recipe.make(unit)
            for number, unit in enumerate(network.units)
            if number >= network.first()
        }

    def drop_frozen(self) -> None:
        """Forget the optimisers of what has been frozen."""
        first = self.network.first()
        self.by_unit = {n: each for n, each in self.by_unit.items() if n >= first}

    def step(self, number: int, factor: float) -> None:
        """Update a unit at the recipe's rate times `factor`, and clear its gradients."""
        optimizer = self.by_unit[number]
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.lr * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def state(self, number: int) -> dict[str, Any] | None:
        """Return the state of a unit's optimiser."""
        optimizer = self.by_unit[number]
        return None if optimizer is None else optimizer.state_dict()

    def restore(self, number: int, state: Mapping[str, Any] | None) -> None:
        """Take a state over."""
        optimizer = self.by_unit[number]
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(dict(state))


def _decays(parameter: nn.Parameter) -> bool:
    """Whether weights of this form decay: matrices, but no positions, whose first size is 1."""
    return parameter.dim() > 1 and parameter.shape[0] > 1
