"""What a network does on a few rows: how a checkpoint tells its own run from another.

Tensors' shapes and settings are alike in many runs. What the saved weights make of the first rows
is alike only if inputs, blocks and loss are: it is kept, and computed again before a run goes on.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from alkit.data import tree
from alkit.data.given import Source, first_samples
from alkit.data.seeds import drawing_from, generator_for
from alkit.engine.device import tensors_at

log = logging.getLogger(__name__)

ROWS = 32
ROUNDING = 1e-2  # of a run that goes on on another device


class _Trained(Protocol):
    model: Any

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]: ...


class Rows:
    """The first rows of the training part.

    Attributes:
        fixed: they are the same when they are read twice; if not, nothing is compared.
    """

    def __init__(self, source: Source) -> None:
        once, again = (first_samples(source, ROWS) for _ in range(2))
        self.x, self.y = once
        pairs = zip(tree.tensors(once), tree.tensors(again), strict=True)
        self.fixed = all(torch.equal(one, other) for one, other in pairs)
        if not self.fixed:
            log.info("rows differ when they are read twice: a checkpoint is compared without them")

    @torch.no_grad()
    def behaviour(self, trainer: _Trained) -> dict[str, Any]:
        """Return scores and loss of the trainer's model as it is; nothing if rows differ."""
        if not self.fixed:
            return {}
        with drawing_from(generator_for("rows").get_state()):
            at = tensors_at(trainer.loss) or "cpu"
            scores, y = tree.to_device((trainer.model.predict(self.x), self.y), at)
            loss = trainer.loss(scores, y).detach()
        kept = [each.float().cpu() for each in tree.tensors(scores)]
        return {"scores": kept, "loss": float(loss.mean())}


def difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Say how what the saved weights did differs from what they do here; "" if it does not."""
    if not saved or not own:
        return ""
    pairs = list(zip(saved["scores"], own["scores"], strict=False))
    if len(saved["scores"]) != len(own["scores"]) or not all(
        tree.near(*pair, ROUNDING) for pair in pairs
    ):
        return (
            f"its weights give other scores of the first {ROWS} rows here, so the inputs or the"
            " network are others"
        )
    if not tree.near(torch.tensor(saved["loss"]), torch.tensor(own["loss"]), ROUNDING):
        return (
            f"its weights have a loss of {saved['loss']:.6g} on the first {ROWS} rows there and of"
            f" {own['loss']:.6g} here, so the targets or the loss are others"
        )
    return ""


def text_of(model: Any) -> str:
    """Return how a model prints itself, without addresses: what evaluation does not show."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(model))
