"""Noise of the feedback loops: a function of (seed, step, block), whoever draws it, and when.

One generator a block and step; its iterations draw from it in turn, dx before dy. So a block's
noise is the same in one process and on any rank.

    normal        independent numbers, as published
    orthogonal    rows of a Hadamard matrix in random order, columns with random signs: +-sigma, and
                  over each round of n rows the covariance is sigma^2 I exactly
"""

import torch
from torch import Generator, Tensor

from alkit.data.seeds import generator_for

KINDS = ("normal", "orthogonal")


def noise_for(seed: int, step: int, block: int) -> Generator:
    """Return the generator of a block's loop in one step."""
    return generator_for(int(seed), "feedback noise", int(step), int(block))


def draw(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """Return normal noise of variance sigma^2, of a tensor's shape and type, where it is.

    Drawn on the CPU, so that it is the same on every device.
    """
    made = torch.empty(like.shape, dtype=like.dtype)
    return made.normal_(0.0, sigma, generator=generator).to(like.device)


class Noise:
    """The noise of one block's loop in one step.

    Args:
        kind: of `KINDS`.
    """

    def __init__(self, generator: Generator, kind: str = "normal") -> None:
        self.generator, self.kind = generator, kind
        self.rounds: dict[str, _Round] = {}

    def draw(self, like: Tensor, sigma: float, place: str) -> Tensor:
        """Return the next noise of a place, "x" or "y": rows are samples."""
        if self.kind == "normal":
            return draw(like, sigma, self.generator)
        found = self.rounds.setdefault(place, _Round(like[0].numel(), self.generator))
        signs = found.rows(len(like))
        return (signs.to(like.device, like.dtype) * sigma).view(like.shape)


class _Round:
    """Rows of a Hadamard matrix of size n, a power of two not below `size`, in random order."""

    def __init__(self, size: int, generator: Generator) -> None:
        self.size, self.generator = size, generator
        self.n = 1 << max(0, size - 1).bit_length()
        self.left = torch.zeros(0, dtype=torch.int32)
        self.flips = torch.zeros(size, dtype=torch.int32)

    def rows(self, count: int) -> Tensor:
        """Return the next rows, int32 (count, size) of +1 and -1; a new round has new signs."""
        found = []
        while count:
            if not len(self.left):
                self.left = torch.randperm(self.n, generator=self.generator).int()
                self.flips = torch.randint(
                    2, (self.size,), generator=self.generator, dtype=torch.int32
                )
            taken, self.left = self.left[:count], self.left[count:]
            found.append(1 - 2 * (_parity(taken, self.size) ^ self.flips))
            count -= len(taken)
        return torch.cat(found)


def _parity(rows: Tensor, size: int) -> Tensor:
    """Return Sylvester's matrix, 0 for +1 and 1 for -1: is the number of ones of i AND j odd?"""
    bits = rows[:, None] & torch.arange(size, dtype=torch.int32)
    for shift in (16, 8, 4, 2, 1):
        bits ^= bits >> shift
    return bits & 1
