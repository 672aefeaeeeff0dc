"""Learning rates over the epochs of a run.

    constant    lr(e) = base
    cosine      lr(e) = base q + end (1 - q),  q = (1 + cos(pi e / epochs)) / 2,  e from 0

`end` is the same fraction of every optimiser's own base rate. The publications of associated
learning take cosine from 1e-4 to 1e-5 for images and a constant 2.5e-4 for texts.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

__all__ = ["SCHEDULES", "SHAPES", "rate_at", "rates", "scheduled"]

# what is left of a rate when so much of a run is done, of so much in all
SHAPES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, total: 1.0,
    "linear": lambda done, total: max(0.0, 1 - done / total),
    "cosine": lambda done, total: (1 + math.cos(math.pi * done / total)) / 2,
}
SCHEDULES = ("constant", "cosine")


class _Optimized(Protocol):
    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]: ...


def rate_at(base: float, schedule: str, epoch: int, epochs: int, end_factor: float) -> float:
    """Return the learning rate of an epoch, counted from 0."""
    q = SHAPES[schedule](epoch, epochs)
    return base * q + base * end_factor * (1 - q)


def rates(model: _Optimized) -> dict[str, float]:
    """Return the learning rates in use, by optimiser and parameter group ("0.enc.0", say)."""
    return {name: float(group["lr"]) for name, group in _groups(model).items()}


@contextmanager
def scheduled(
    model: _Optimized, schedule: str, epochs: int, end_factor: float
) -> Iterator[Callable[[int], float]]:
    """Yield a function that sets all rates for an epoch and returns the first of them, if any.

    The rates that the model came with are the base, and are put back at the end.

    Raises:
        ValueError: unknown schedule, or an end factor that gives no rate.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}: give {' or '.join(SCHEDULES)}")
    if not (math.isfinite(end_factor) and end_factor >= 0):
        raise ValueError(f"end_factor is {end_factor}: it must be finite and not negative")
    base = rates(model)

    def start_epoch(epoch: int) -> float:
        now = {k: rate_at(lr, schedule, epoch, epochs, end_factor) for k, lr in base.items()}
        _set(model, now)
        return next(iter(now.values()), math.nan)

    try:
        yield start_epoch
    finally:
        _set(model, base)


def _groups(model: _Optimized) -> dict[str, dict[str, Any]]:
    """Look the groups up anew each time: loading an optimiser's state replaces them."""
    return {
        f"{name}.{at}": group
        for name, optimizer in model.named_optimizers().items()
        for at, group in enumerate(optimizer.param_groups if optimizer is not None else ())
    }


def _set(model: _Optimized, wanted: Mapping[str, float]) -> None:
    for name, group in _groups(model).items():
        group["lr"] = wanted[name]
