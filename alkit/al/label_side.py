"""The label side on its own: labels in, label autoencoders trained, no image or text needed.

What g and h learn depends on labels alone, so hours of a run can be foretold in a minute: here the
published tiny ImageNet recipe sits at the constant prediction for sixteen epochs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.layers import AE
from alkit.al.model import ALModel
from alkit.engine.modes import evaluating

TOLERANCE = 0.02  # an autoencoder whose loss is within this share of the constant's is stalled


@dataclass(frozen=True)
class Level:
    """How a label autoencoder does on all classes.

    Attributes:
        level: 1 and up.
        loss: its loss over the classes, each counted once.
        constant: the loss of predicting the same for every class, as well as that can be done.
        right: share of classes that decode, down to the label, to themselves.
        spread: sd over the classes of what it is to encode; near 0 nothing can be learned from it.
    """

    level: int
    loss: float
    constant: float
    right: float
    spread: float

    @property
    def stalled(self) -> bool:
        """Say whether it does no better than a constant."""
        return self.loss >= (1 - TOLERANCE) * self.constant


def constant_loss(loss: Callable[[Tensor, Tensor], Tensor], rows: Tensor) -> float:
    """Return the least loss that one prediction for all rows (C, K) can have.

    It is known for MSE (the mean row), cross-entropy and BCE (their logits of the mean row); NaN
    for any other loss.
    """
    mean = rows.mean(0, keepdim=True)
    best = {
        F.mse_loss: mean,
        F.cross_entropy: mean.clamp(min=1e-12).log(),
        F.binary_cross_entropy_with_logits: mean.clamp(1e-7, 1 - 1e-7).logit(),
    }.get(loss)
    return float("nan") if best is None else loss(best.expand_as(rows), rows).item()


@torch.no_grad()
def levels_of(autoencoders: Iterable[AE], num_classes: int) -> list[Level]:
    """Look at every label autoencoder of a stack, on all classes.

    Args:
        autoencoders: from the input side: `[layer.ae for layer in model]`.
    """
    found: list[Level] = []
    rows = classes = torch.eye(num_classes)
    levels = list(autoencoders)
    with evaluating(nn.ModuleList(levels)):
        for number, ae in enumerate(levels, start=1):
            rows = _beside(ae, rows)
            code, decoded = ae(rows)
            down = code
            for below in reversed(levels[:number]):
                down = below.h(_beside(below, down))
            right = (down.argmax(1).cpu() == classes.argmax(1)).float().mean().item()
            loss, constant = ae.loss(decoded, rows).item(), constant_loss(ae.loss_fn, rows)
            found.append(Level(number, loss, constant, right, rows.std(0).mean().item()))
            rows = code
    return found


def _beside(module: nn.Module, rows: Tensor) -> Tensor:
    """Move rows to where a module's numbers are."""
    held = next(chain(module.parameters(), module.buffers()), rows)
    return rows.to(held.device)


def stalled(model: ALModel, num_classes: int) -> list[int]:
    """Name the layers, from 1, whose label autoencoder sits at the constant prediction.

    Fixed codes never do. A stalled level gives the bridges of its layer and of those above targets
    that hardly tell the classes apart.
    """
    levels = levels_of([layer.ae for layer in model], num_classes)
    return [one.level for one in levels if one.stalled and one.constant > 0]
