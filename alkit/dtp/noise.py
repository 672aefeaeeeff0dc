"""Noise of the feedback loops: a function of (seed, step, block), whoever draws it, and when.

One generator a block and step; its iterations draw from it in turn, dx before dy. So a block's
noise is the same in one process and on any rank.
"""

import torch
from torch import Generator, Tensor

from alkit.data.seeds import generator_for


def noise_for(seed: int, step: int, block: int) -> Generator:
    """Return the generator of a block's loop in one step."""
    return generator_for(int(seed), "feedback noise", int(step), int(block))


def draw(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """Return normal noise of variance sigma^2, of a tensor's shape and type, where it is.

    Drawn on the CPU, so that it is the same on every device.
    """
    made = torch.empty(like.shape, dtype=like.dtype)
    return made.normal_(0.0, sigma, generator=generator).to(like.device)
