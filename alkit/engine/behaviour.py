"""What a network makes of a few rows: how a checkpoint tells its own run from another.

Tensors' shapes and settings are alike in many runs. The loss of the saved weights on the first rows
is alike only if inputs, blocks and loss are: it is kept, and computed again before a run goes on.
"""

import logging
import math
import re
from collections.abc import Callable
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
    def loss(self, trainer: _Trained) -> float | None:
        """Return the loss of the trainer's model as it is; None if rows differ."""
        if not self.fixed:
            return None
        torch.clear_autocast_cache()
        with drawing_from(generator_for("rows").get_state()):
            at = tensors_at(trainer.loss) or "cpu"
            scores, y = tree.to_device((trainer.model.predict(self.x), self.y), at)
            return float(trainer.loss(scores, y).mean())


def difference(saved: float | None, here: float | None) -> str:
    """Say how the loss of the saved weights was another one; "" if it was not."""
    if saved is None or here is None or (math.isnan(saved) and math.isnan(here)):
        return ""
    if math.isclose(saved, here, rel_tol=ROUNDING, abs_tol=1e-6):
        return ""
    return (
        f"its weights have a loss of {saved:.6g} on the first {ROWS} rows there and of {here:.6g}"
        " here, so the inputs, the network, the targets or the loss are others"
    )


def text_of(model: Any) -> str:
    """Return how a model prints itself, without addresses: what evaluation does not show."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(model))
