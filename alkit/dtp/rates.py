"""The forward weights' learning rate."""

import math

from alkit.dtp.settings import Settings

__all__ = ["rate"]

EPOCHS, LAST = 85, 1e-5  # of the published cosine, in runs of 90 epochs


def rate(settings: Settings, step: int, epoch: int, steps: int) -> float:
    """Return the rate of a step.

    Args:
        step: from 0, of `steps` in all.
    """
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * step / steps)) / 2
    if settings.schedule == "cosine_published":
        return LAST + (settings.lr - LAST) * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2
    if settings.schedule == "step":
        return settings.lr * 0.1 ** (epoch // 30)
    return settings.lr
