"""What arms of the label ladder change in the label side of a model that is built."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.codes import FixedDecoder, FixedEncoder
from alkit.al.label_side import train_labels
from alkit.al.layers import AE, Loss
from alkit.al.model import ALModel
from studies import ladder_heads as heads

__all__ = [
    "one_code",
    "random_directions",
    "train_label_side",
    "train_then_freeze",
    "weigh",
]

LABEL_EPOCHS, LABEL_STEPS = 100, 100  # the most, of labels alone, before a run


def train_label_side(model: ALModel, classes: int) -> None:
    """Train the label side alone until every level decodes all classes and none is stalled."""
    sides, first = [layer.ae for layer in model], model[0].ae.loss_fn
    model[0].ae.loss_fn = F.cross_entropy  # of which it is known where it is stalled
    options = {"epochs": LABEL_EPOCHS, "steps": LABEL_STEPS, "batch_size": 64, "lr": 1e-3}
    train_labels(sides, classes, until_right=True, **options)
    model[0].ae.loss_fn = first


def train_then_freeze(model: ALModel, classes: int) -> None:
    """Train it alone, then leave it as it is."""
    train_label_side(model, classes)
    model.set_lr("ae", 0.0)


def random_directions(model: ALModel, classes: int) -> None:
    """Put frozen random directions in the place of orthonormal ones."""
    table = F.normalize(torch.randn(model[0].ae.g.table.shape), dim=1)
    model[0].ae = AE(FixedEncoder(table), FixedDecoder(table), heads.smoothed)


def one_code(model: ALModel, classes: int) -> None:
    """Hand the first level's codes up unchanged."""
    for layer in list(model)[1:]:
        layer.ae = AE(nn.Identity(), nn.Identity())


def weigh(model: ALModel, classes: int, *, weight: float) -> None:
    """Multiply the autoencoders' losses."""
    for layer in model:
        layer.ae.loss_fn = partial(_weighed, loss=layer.ae.loss_fn, weight=weight)


def _weighed(r: Tensor, y: Tensor, *, loss: Loss, weight: float) -> Tensor:
    return weight * loss(r, y)
