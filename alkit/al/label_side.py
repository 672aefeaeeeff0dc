"""The label side on its own: labels in, label autoencoders trained, no image or text needed.

What g and h learn depends on labels alone, so hours of a run can be foretold in a minute: here the
published tiny ImageNet recipe sits at the constant prediction for sixteen epochs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.codes import Codes, shared
from alkit.al.convert import label_side
from alkit.al.layers import AE
from alkit.al.model import ALModel
from alkit.al.recipes import Recipe
from alkit.data.labels import one_hot
from alkit.data.seeds import generator_for
from alkit.engine.optimizers import adam
from alkit.models.modes import evaluating

__all__ = [
    "Level",
    "Variant",
    "constant_loss",
    "levels_of",
    "milestones",
    "stack",
    "stalled",
    "train_labels",
]

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


@dataclass(frozen=True)
class Variant:
    """A label side to compare with others.

    Attributes:
        init: changes a level's initial weights in place.
    """

    recipe: Recipe
    lr: float = 1e-4
    levels: int = 1
    init: Callable[[nn.Module], None] | None = None

    def build(
        self, num_classes: int, code_dim: int, *, levels: int | None = None, seed: int = 0
    ) -> list[AE]:
        """Return its untrained autoencoders, the same ones for the same seed."""
        recipe = replace(self.recipe, code_dim=code_dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = stack(recipe, num_classes, levels or self.levels)
            if self.init is not None:
                for ae in made:
                    self.init(ae)
        return made


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


def stack(recipe: Recipe, num_classes: int, levels: int = 1) -> list[AE]:
    """Return the label side of an AL model of so many layers."""
    widths = [num_classes, *[recipe.code_dim] * (levels - 1)]
    return [label_side(recipe, level, width) for level, width in enumerate(widths)]


def train_labels(
    autoencoders: Sequence[AE],
    num_classes: int,
    *,
    epochs: int,
    steps: int,
    batch_size: int,
    lr: Callable[[int], float] | float = 1e-3,
    seed: int = 0,
    until_right: bool = False,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> pd.DataFrame:
    """Train label autoencoders on labels alone, each level on the detached code of the one below.

    Args:
        steps: batches an epoch; labels are drawn class-balanced, in an order of (seed, epoch).
        lr: learning rate, a number or a function of the epoch (from 0).
        until_right: end after the first epoch in which every level decodes all classes and none
            is stalled.
    Returns: a row an epoch (from 1) and level, with the fields of `Level` and `stalled`.
    """
    rate = lr if callable(lr) else lambda epoch: lr
    optimizers = [
        adam(own, rate(0)) if (own := [*ae.parameters()]) else None for ae in autoencoders
    ]
    rows = []
    for epoch in progress(range(epochs)):
        for optimizer in filter(None, optimizers):
            optimizer.param_groups[0]["lr"] = rate(epoch)
        for labels in _label_batches(num_classes, steps, batch_size, seed, epoch):
            codes = shared(one_hot(labels, num_classes))
            assert isinstance(codes, Codes)  # as of all one-hot rows
            _step(autoencoders, optimizers, codes)
        levels = levels_of(autoencoders, num_classes)
        rows += [{"epoch": epoch + 1, **vars(one), "stalled": one.stalled} for one in levels]
        if until_right and all(one.right == 1 and not one.stalled for one in levels):
            break
    return pd.DataFrame(rows)


def milestones(history: pd.DataFrame) -> pd.DataFrame:
    """Return when each level got where, from the rows of `train_labels`.

    Returns: a row a level: escape, the epoch from which on neither it nor a level below is stalled;
        perfect, the first in which all classes decode; NaN for what did not happen within `epochs`.
    """
    rows = []
    held = 0
    for level, own in history.groupby("level"):
        held = max(held, own.epoch[own.stalled].max() if own.stalled.any() else 0)
        escape = own.epoch[own.epoch > held].min()
        perfect = own.epoch[own.right == 1].min()
        rows.append({"level": level, "escape": escape, "perfect": perfect, "epochs": len(own)})
    return pd.DataFrame(rows)


def _step(
    autoencoders: Sequence[AE], optimizers: Sequence[torch.optim.Optimizer | None], codes: Codes
) -> None:
    for ae, optimizer in zip(autoencoders, optimizers, strict=True):
        code, decoded = ae(codes.rows)
        if optimizer is not None:
            optimizer.zero_grad()
            ae.loss(decoded[codes.index], codes.gathered()).backward()
            optimizer.step()
        codes = Codes(code.detach(), codes.index)


def _label_batches(
    num_classes: int, steps: int, batch_size: int, seed: int, epoch: int
) -> Iterator[Tensor]:
    count = steps * batch_size
    generator = generator_for("labels", seed, epoch)
    labels = torch.arange(count) % num_classes
    yield from labels[torch.randperm(count, generator=generator)].split(batch_size)
