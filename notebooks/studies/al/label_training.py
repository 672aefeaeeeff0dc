"""The label side on its own: labels in, label autoencoders trained, no image or text needed.

What g and h learn depends on labels alone, so hours of a run can be foretold in a minute: here the
published tiny ImageNet recipe sits at the constant prediction for sixteen epochs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.codes import Codes, shared
from alkit.al.convert import label_side
from alkit.al.layers import AE, dtype_of
from alkit.al.model import ALModel
from alkit.al.recipes import Recipe
from alkit.base.seeds import generator_for
from alkit.data.labels import one_hot
from alkit.engine.device import place
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import adam

TOLERANCE = 0.02  # an autoencoder whose loss is within this share of a constant's is stalled


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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            recipe = replace(self.recipe, code_dim=code_dim)
            made = stack(recipe, num_classes, levels or self.levels)
            for ae in made if self.init else ():
                self.init(ae)
        return made


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
) -> pd.DataFrame:
    """Train label autoencoders on labels alone, each level on the detached code of the one below.

    Args:
        steps: batches per epoch; labels are drawn class-balanced, in an order of (seed, epoch).
        lr: learning rate, a number or a function of the epoch (from 0).
    Returns: a row an epoch (from 1) and level, see `levels_of`, up to the first in
        which every level decodes all classes and none is stalled.
    """
    rate = lr if callable(lr) else lambda epoch: lr
    optimizers = [
        adam(own, rate(0)) if (own := [*ae.parameters()]) else None for ae in autoencoders
    ]
    rows = []
    for epoch in range(epochs):
        for optimizer in filter(None, optimizers):
            optimizer.param_groups[0]["lr"] = rate(epoch)
        labels, generator = torch.arange(steps * batch_size), generator_for("labels", seed, epoch)
        drawn = labels[torch.randperm(len(labels), generator=generator)] % num_classes
        for batch in drawn.split(batch_size):
            codes = shared(one_hot(batch, num_classes))
            for ae, optimizer in zip(autoencoders, optimizers, strict=True):
                code, decoded = ae(codes.rows)
                if optimizer is not None:
                    optimizer.zero_grad()
                    ae.loss(decoded[codes.index], codes.gathered()).backward()
                    optimizer.step()
                codes = Codes(code.detach(), codes.index)
        levels = levels_of(autoencoders, num_classes)
        rows += [{"epoch": epoch + 1, **one} for one in levels]
        if all(one["right"] == 1 and not one["stalled"] for one in levels):
            break
    return pd.DataFrame(rows)


@torch.no_grad()
def levels_of(autoencoders: Sequence[AE], num_classes: int) -> list[dict[str, Any]]:
    """Look at every label autoencoder on all classes.

    Returns: a row a level (from 1): loss, constant, the least loss of one prediction for all;
        right, the share of classes that decode, down to the label, to themselves; spread, the sd
        over the classes of what is encoded; stalled, whether it does no better than a constant.
    """
    found, rows = [], torch.eye(num_classes, dtype=dtype_of(autoencoders[0], torch.float32))
    with evaluating(nn.ModuleList(autoencoders)):
        for number, ae in enumerate(autoencoders, 1):
            rows = place(rows, ae)
            code, decoded = ae(rows)
            loss, constant, down = ae.loss(decoded, rows).item(), _constant(ae, rows), code
            for below in reversed(autoencoders[:number]):
                down = below.h(down)
            right = (down.argmax(1).cpu() == torch.arange(num_classes)).float().mean().item()
            one = {"level": number, "loss": loss, "constant": constant, "right": right}
            one |= {"spread": rows.std(0).mean().item()}
            found.append(one | {"stalled": loss >= (1 - TOLERANCE) * constant})
            rows = code
    return found


def _constant(ae: AE, rows: Tensor) -> float:
    """Return the least loss of one prediction for all; NaN where it isn't known."""
    mean = rows.mean(0, keepdim=True)
    best = {
        F.mse_loss: mean,
        F.cross_entropy: mean.clamp(min=1e-12).log(),
        F.binary_cross_entropy_with_logits: mean.clamp(1e-7, 1 - 1e-7).logit(),
    }.get(ae.loss_fn, mean * float("nan"))
    return ae.loss_fn(best.expand_as(rows), rows).item()


def stalled(num_classes: int) -> Callable[[Any, ALModel], dict[str, int]]:
    """Return a callback of `alkit.fit` that counts the layers whose label side is stalled."""

    def count(row: Any, model: ALModel) -> dict[str, int]:
        levels = levels_of([layer.ae for layer in model], num_classes)
        return {"stalled": sum(level["stalled"] for level in levels)}

    return count


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
