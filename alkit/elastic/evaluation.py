"""Every sample exactly once, shared out among the ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from alkit.elastic.examples import Examples
from alkit.elastic.network import Loss
from alkit.engine.group import Group
from alkit.engine.heartbeat import beat

__all__ = ["correct"]

BATCH = 256  # samples at once


def correct(
    predict: Callable[[Any], Any], metric: Loss, data: Examples, group: Group | None = None
) -> Tensor:
    """Return the metric of every sample, float (N,), the same on all ranks.

    Args:
        predict: returns the scores of inputs.
        metric: of (scores, y), a number a sample.
        group: the ranks that share the work; None: this process does all.
    """
    rank, ranks = (0, 1) if group is None else (group.rank, group.ranks)
    found = torch.zeros(len(data))
    for rows in torch.arange(rank, len(data), ranks).split(BATCH):
        beat("evaluation")
        found[rows] = metric(predict(data.inputs(rows)), data.y[rows]).float()
    return found if group is None else group.total(found)
