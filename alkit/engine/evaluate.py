"""How many samples of a part a model has right."""

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["evaluate", "right"]


class _Predicts(Protocol):
    def predict(self, x: Any) -> Tensor: ...


def right(scores: Tensor, y: Tensor) -> Tensor:
    """Return which samples are right, float (B,): 1 where the highest score is the label's.

    Args:
        scores: (B, C).
        y: class numbers (B,), or rows (B, C) whose highest share is the class.
    """
    labels = y if y.dim() == 1 else y.argmax(1)
    return (scores.argmax(1).cpu() == labels.cpu()).float()


@torch.no_grad()
def evaluate(
    model: _Predicts, part: Any, *, depth: int | None = None, batch_size: int = 512
) -> Tensor:
    """Return which samples of `part` are classified correctly: float (N,), 0 or 1, in its order.

    Args:
        part: a `Part`, or what `alkit.data.given.as_splits` makes of a loader.
        depth: leave an ALModel at this layer; default the full path.
    """
    options = {} if depth is None else {"depth": depth}
    batches = part.batches(batch_size, shuffle=False)
    return torch.cat([right(model.predict(x, **options), y) for x, y in batches])
