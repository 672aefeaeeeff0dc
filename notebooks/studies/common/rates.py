"""Learning rates that several studies follow, as factors."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR


def share(epoch: int, *, epochs: int, end: float = 0.1) -> float:
    """Return what an epoch, from 0, has of the first rate: a cosine down to `end` of it."""
    q = (1 + math.cos(math.pi * epoch / epochs)) / 2
    return q + end * (1 - q)


def cosine(epochs: int, end: float = 0.1) -> Callable[[torch.optim.Optimizer], LambdaLR]:
    """Return what makes a scheduler that falls by a cosine to `end` of the first rate."""
    return partial(LambdaLR, lr_lambda=partial(share, epochs=epochs, end=end))


def linear(batches: int, warmup: float = 0.1) -> Callable[[int], float]:
    """Return a factor that rises over the first `warmup` share and falls to 0, as in BERT."""
    top = max(1, round(warmup * batches))

    def rate(batch: int) -> float:
        if batch < top:
            return (batch + 1) / top
        return max(0.0, (batches - batch) / max(1, batches - top))

    return rate
