"""What variants of the label ladder change in the label side of a model that is built."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.codes import FixedDecoder, FixedEncoder
from alkit.al.layers import AE, Loss
from alkit.al.model import ALModel
from alkit.base.seeds import generator_for
from alkit.data.labels import one_hot
from studies.al.label_training import train_labels
from studies.ladder.rules import smoothed

LABEL_EPOCHS, LABEL_STEPS = 100, 100  # the most, of labels alone, before a run
# what DBpedia's ontology puts its 14 classes under: organisations, persons, means of
# transportation, places, species, works
SUPER_CLASSES = (0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 5, 5, 5)


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
    model[0].ae = AE(FixedEncoder(table), FixedDecoder(table), smoothed)


def one_code(model: ALModel, classes: int) -> None:
    """Hand the first level's codes up unchanged."""
    for layer in list(model)[1:]:
        layer.ae = AE(nn.Identity(), nn.Identity())


def tell(model: ALModel, classes: int, *, dealt: bool = False) -> None:
    """Give the first g a class's super-class beside its one-hot row.

    Args:
        dealt: deal the super-classes out among the classes at random, as a control.
    """
    if classes != len(SUPER_CLASSES):
        raise ValueError(
            f"{classes} classes: super-classes are known of DBpedia's {len(SUPER_CLASSES)} only"
        )
    groups = torch.tensor(SUPER_CLASSES)
    if dealt:
        groups = groups[torch.randperm(classes, generator=generator_for("super-classes"))]
    told = torch.cat([torch.eye(classes), one_hot(groups, max(SUPER_CLASSES) + 1)], dim=1)
    linear, ending = model[0].ae.g
    model[0].ae.g = nn.Sequential(
        FixedEncoder(told), nn.Linear(told.shape[1], linear.out_features), ending
    )


class Replayed(FixedEncoder):
    """A g that hands out the codes of another run, batch by batch.

    Args:
        tables: float (steps + 1, C, K), the codes that each batch met, and those after the last.
    """

    def __init__(self, tables: Tensor) -> None:
        super().__init__(tables[0])
        self.tables, self.batches = tables, 0

    def forward(self, y: Tensor) -> Tensor:
        """Return the codes of all classes that the next batch meets."""
        return self.table

    def turn(self, *_: Any) -> None:
        """Go on to the next batch; a hook of the layer's forward."""
        self.batches += 1
        self.table = self.tables[self.batches]


def watch(model: ALModel) -> list[list[Tensor]]:
    """Return a list a level, to which training adds the codes (C, K) that each batch meets."""
    found: list[list[Tensor]] = [[] for _ in model]
    for layer, own in zip(model, found, strict=True):
        layer.register_forward_hook(lambda _, given, out, own=own: own.append(out[1].rows))
    return found


def replay(model: ALModel, tables: Sequence[Tensor], order: Sequence[int] | Tensor) -> None:
    """Let a model's labels follow the codes of another run; nothing of its label side learns.

    Args:
        tables: a level's codes each, see `Replayed`.
        order: whose code each class gets; 0, 1, ... for its own.
    """
    for level, (layer, own) in enumerate(zip(model, tables, strict=True)):
        g = Replayed(own[:, order])
        h = nn.Identity() if level else FixedDecoder(g.table)
        layer.ae, layer.coupled = AE(g, h), False
        layer.register_forward_hook(g.turn)


def weigh(model: ALModel, classes: int, *, weight: float) -> None:
    """Multiply the autoencoders' losses."""
    for layer in model:
        layer.ae.loss_fn = partial(_weighed, loss=layer.ae.loss_fn, weight=weight)


def _weighed(r: Tensor, y: Tensor, *, loss: Loss, weight: float) -> Tensor:
    return weight * loss(r, y)
