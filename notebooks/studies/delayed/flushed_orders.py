"""The orders of one gradient: blocks to run them on, and what a worker holds of them."""

import torch
from torch import Tensor, nn

from alkit.delayed.methods import ORDERS as ORDERS
from alkit.delayed.schedules import SHARED
from alkit.schedule.timeline import Timeline

DONE = ("backward", "backward_weight")  # what lets a graph go


class Residual(nn.Module):
    """x + MLP(x): blocks that all take alike."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width)."""
        return x + self.inner(x)


def blocks(width: int, count: int = 8, seed: int = 0) -> list[nn.Module]:
    """Return blocks of (B, width), the last of which gives scores of ten classes."""
    torch.manual_seed(seed)
    made = [Residual(width) for _ in range(count)]
    return [*made[:-1], nn.Sequential(made[-1], nn.Linear(width, 10))]


def modules_of(method: str, workers: int) -> int:
    """Return how many modules a method cuts for its workers: one each, or two."""
    return workers * (2 if method in SHARED else 1)


def most_held(timeline: Timeline) -> int:
    """Return the most graphs, of one stage and micro-batch each, that a worker holds at once."""
    held = dict.fromkeys(timeline.resources, 0)
    most = 0
    for own in sorted(timeline.intervals, key=lambda each: each.start_s):
        held[own.resource] += (own.kind == "forward") - (own.kind in DONE)
        most = max(most, held[own.resource])
    return most
