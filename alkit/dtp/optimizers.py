"""Optimisers of the forward weights and of each feedback, and the forward weights' rate."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from alkit.engine.rates import SHAPES

OPTIMIZERS = ("sgd", "adam")
EPOCHS, LAST = 85, 1e-5  # of the published cosine, in runs of 90 epochs

# by the rate, step, epoch and number of steps
SCHEDULES: dict[str, Callable[[float, int, int, int], float]] = {
    "cosine": lambda lr, step, epoch, steps: lr * SHAPES["cosine"](step, steps),
    "cosine_published": lambda lr, step, epoch, steps: (
        LAST + (lr - LAST) * SHAPES["cosine"](epoch, EPOCHS)
    ),
    "step": lambda lr, step, epoch, steps: lr * 0.1 ** (epoch // 30),
    "none": lambda lr, step, epoch, steps: lr,
}


def rate(schedule: str, lr: float, step: int, epoch: int, steps: int) -> float:
    """Return the rate of a step.

    Args:
        schedule: of `SCHEDULES`.
        step: from 0, of `steps` in all.
    """
    return SCHEDULES[schedule](lr, step, epoch, steps)


def optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    lr: float,
    momentum: float,
    weight_decay: float = 0,
) -> torch.optim.Optimizer:
    """Return an optimiser.

    Args:
        name: of `OPTIMIZERS`.
        momentum: of SGD.
    """
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
