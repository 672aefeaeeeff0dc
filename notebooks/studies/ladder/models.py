"""Models of the label ladder that no layer of AL's makes: deep supervision, and nearest codes.

B batch, C classes, K width of a code.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.layers import AL
from alkit.al.model import ALModel
from alkit.engine.modes import evaluating
from alkit.engine.random import random_from
from studies.ladder.rules import smoothed


class DeepSupervision(BPModel):
    """A1: every exit's cross-entropy, added, through all blocks below; one optimiser.

    Args:
        stack: an AL model whose bridges end in class scores.
    """

    def __init__(self, stack: ALModel, lr: float) -> None:
        super().__init__([layer.enc for layer in stack], lr, smoothed)

    def exits(self, x: Any, key: tuple[int, int] | None = None) -> list[Tensor]:
        """Return the scores (B, C) of every exit; key: see `BPModel.forward`."""
        found = []
        for index, enc in enumerate(self.blocks):
            with nullcontext() if key is None else random_from(key[0], index, key[1]):
                x, scores = enc(x)
            found.append(scores)
        return found

    def loss(self, x: Any, y: Tensor, key: tuple[int, int] | None = None) -> Tensor:
        """Return the sum over the exits."""
        return torch.stack([self.loss_fn(scores, y) for scores in self.exits(x, key)]).sum()

    @torch.no_grad()
    def predict(self, x: Any, depth: int | None = None) -> Tensor:
        """Return the scores of an exit, from 1; by default of the last."""
        with evaluating(self):
            return self.exits(x)[(depth or len(self)) - 1]


class NearestCode(ALModel):
    """AL that reads an exit out by the nearest code of its level, as its contrast is trained."""

    def __init__(self, layers: Iterable[AL], classes: int) -> None:
        super().__init__(layers, label_shortcut=True)
        self.classes = classes

    @torch.no_grad()
    def tables(self) -> list[Tensor]:
        """Return the codes of all classes at every level, (C, K)."""
        own = next(self.parameters())
        rows, found = torch.eye(self.classes, dtype=own.dtype, device=own.device), []
        for layer in self:
            rows = layer.ae.g(rows)
            found.append(rows)
        return found

    def exits(self, x: Any) -> list[Tensor]:
        """Return the similarities (B, C) of every exit with its level's codes."""
        found = []
        for layer, rows in zip(self, self.tables(), strict=True):
            x = layer.enc.f(x)
            found.append(layer.enc.loss_fn.scores(layer.enc.b(x), rows))
        return found

    def _scores(self, x: Any, depth: int | None, read: str) -> Tensor:
        if depth is None and read == "head":
            return super()._scores(x, depth, read)
        return self.exits(x)[(depth or len(self)) - 1]
