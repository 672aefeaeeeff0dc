"""Optimisers of the forward weights and of each feedback, and the forward weights' rate."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

OPTIMIZERS = ("sgd", "adam")
EPOCHS, LAST = 85, 1e-5  # of the published cosine, in runs of 90 epochs


def _cosine(done: int, total: int) -> float:
    """Return what is left of a rate."""
    return (1 + math.cos(math.pi * done / total)) / 2


# by the rate, step, epoch and number of steps
SCHEDULES: dict[str, Callable[[float, int, int, int], float]] = {
    "cosine": lambda lr, step, epoch, steps: lr * _cosine(step, steps),
    "cosine_published": lambda lr, step, epoch, steps: LAST + (lr - LAST) * _cosine(epoch, EPOCHS),
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
