"""Associated learning, or backprop of the same blocks, as the loop over epochs runs it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.layers import AE, dtype_of, label_rows
from alkit.al.model import ALModel
from alkit.al.train import Trained, train_epoch
from alkit.data.given import Splits
from alkit.engine import trainer
from alkit.engine.device import place
from alkit.engine.modes import evaluating

TOLERANCE = 0.02  # an autoencoder whose loss is within this share of a constant's is stalled


@dataclass
class Trainer(trainer.Trainer):
    """A model, and how an epoch of it is run.

    Args:
        options: of `alkit.train_epoch`, such as workers and seed.
    """

    model: ALModel | BPModel
    method: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The method and the seed."""
        return f"{self.method}, seed {self.options.get('seed', 0)}"

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of backprop, or of the first level's autoencoder."""
        if isinstance(self.model, ALModel) and self.model.read == "code":
            return partial(_of_codes, model=self.model)
        whole = self.model if isinstance(self.model, BPModel) else self.model.head
        assert whole is not None
        return whole.loss_fn

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""
        return train_epoch(self.model, batches, self.method, **self.options)

    def row(self, trained: Trained) -> dict[str, float]:
        """Return both losses of every layer, from 1, and the head's."""
        row = {} if trained.head is None else {"head": trained.head.mean().item()}
        per_layer = trained.losses.mean(0)
        if per_layer.shape[1] == 2:
            for at, (associated, autoencoder) in enumerate(per_layer.tolist(), 1):
                row |= {f"associated_{at}": associated, f"autoencoder_{at}": autoencoder}
        return row

    def measure(self, data: Splits) -> dict[str, float]:
        """Return how many label autoencoders are stalled."""
        if isinstance(self.model, BPModel) or data.num_classes is None:
            return {}
        pairs = label_losses([layer.ae for layer in self.model], data.num_classes)
        return {"stalled": sum(0 < (1 - TOLERANCE) * least <= loss for loss, least in pairs)}

    def shown(self, trained: Trained) -> dict[str, float]:
        """Return the mean of each kind of loss."""
        means = trained.losses.mean((0, 1)).tolist()
        names = ("associated", "autoencoder") if len(means) == 2 else ("loss",)
        return dict(zip(names, means, strict=True))


def _of_codes(scores: Tensor, y: Tensor, *, model: ALModel) -> Tensor:
    own = model[0].ae
    return own.loss_fn(scores, label_rows(y, own.g, model.num_classes))


@torch.no_grad()
def label_losses(autoencoders: Iterable[AE], num_classes: int) -> list[tuple[float, float]]:
    """Return each label autoencoder's loss on all classes, and the least of one prediction for all.

    Where these are near each other, codes hardly tell the classes apart. The least is known for
    MSE, cross-entropy and BCE, and NaN for any other loss.
    """
    levels, found = [*autoencoders], list[tuple[float, float]]()
    rows = torch.eye(num_classes, dtype=dtype_of(levels[0], torch.float32))
    with evaluating(nn.ModuleList(levels)):
        for ae in levels:
            rows = place(rows, ae)
            code, decoded = ae(rows)
            mean = rows.mean(0, keepdim=True)
            best = {
                F.mse_loss: mean,
                F.cross_entropy: mean.clamp(min=1e-12).log(),
                F.binary_cross_entropy_with_logits: mean.clamp(1e-7, 1 - 1e-7).logit(),
            }.get(ae.loss_fn, mean * float("nan"))
            least = ae.loss_fn(best.expand_as(rows), rows)
            found.append((ae.loss(decoded, rows).item(), least.item()))
            rows = code
    return found
