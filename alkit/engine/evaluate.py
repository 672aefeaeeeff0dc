"""How many samples of a part a model has right."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from alkit.data import tree
from alkit.engine.group import Group
from alkit.engine.heartbeat import beat

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
    return (scores.argmax(1) == labels).float()


@torch.no_grad()
def evaluate(
    model: _Predicts,
    part: Any,
    *,
    depth: int | None = None,
    batch_size: int = 512,
    metric: Callable[[Any, Tensor], Tensor] = right,
    group: Group | None = None,
) -> Tensor:
    """Return which samples of `part` are classified correctly: float (N,), 0 or 1, in its order.

    Args:
        part: a `Part`, or what `alkit.data.given.as_splits` makes of a loader.
        depth: leave an ALModel at this layer; default the full path.
        metric: of (scores, y), another number a sample; both are on the CPU.
        group: ranks that share the batches out, and all get the same.
    """
    options = {} if depth is None else {"depth": depth}
    rank, ranks = (0, 1) if group is None else (group.rank, group.ranks)
    found = []
    for number, (x, y) in enumerate(part.batches(batch_size, shuffle=False)):
        if number % ranks == rank:
            beat("evaluation")
            scores_and_y = tree.to_device((model.predict(x, **options), y), "cpu")
            found.append(metric(*scores_and_y).float())
        else:
            found.append(torch.zeros(len(y)))
    return torch.cat(found) if group is None else group.total(torch.cat(found))
