"""Optimisers as factories: what models are made with when nothing else is asked for."""

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["adam"]


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return Adam in its fused form: the same mathematics in one pass, several times faster."""
    return torch.optim.Adam(parameters, lr=lr, fused=True)
