"""Noise of the feedback loops: a function of (seed, step, block), whoever draws it, and when.

One generator a block and step; its iterations draw from it in turn, dx before dy. So a block's
noise is the same in one process and on any rank.
"""

import torch
from torch import Generator, Tensor

from alkit.rng import generator_for

__all__ = ["draw", "noise_for"]


def noise_for(seed: int, step: int, block: int, device: torch.device | str = "cpu") -> Generator:
    """Return the generator of a block's loop in one step."""
    return generator_for(int(seed), "feedback noise", int(step), int(block), device=device)


def draw(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """Return normal noise of variance sigma^2, of a tensor's shape and type."""
    made = torch.empty_like(like, memory_format=torch.contiguous_format)
    return made.normal_(0.0, sigma, generator=generator)
