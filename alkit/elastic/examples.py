"""Samples by number, in an order that depends on the seed and the epoch alone.

Step b of an epoch takes positions [b G, (b + 1) G) of the epoch's order, the last one what is left,
and replica r the r-th of R parts of them: a change of R leaves every global batch as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from alkit.data import tree
from alkit.data.arguments import Brief
from alkit.data.augment import draw_windows, windows
from alkit.data.seeds import generator_for


@dataclass(frozen=True, eq=False, repr=False)
class Examples(Brief):
    """The samples of one part of a data set.

    Attributes:
        x: a tensor (N, ...), or tuples, lists and dicts of such tensors.
        y: labels, (N,), or (N, 2) for answers; or what a loss of your own compares.
        variants: of an image; 0: as they are. With v variants an image is cut and flipped in v
            ways, variant (epoch mod v) in an epoch: stored features need a fixed number of them.
        seed: of the variants.
    """

    x: Any
    y: Tensor
    variants: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.y, Tensor):
            raise ValueError(
                "elastic training deals one tensor of targets by row, and got several: give one,"
                ' or method="1f1b"'
            )
        parts = [len(part) for part in tree.tensors(self.x)]
        if any(length != len(self.y) for length in parts):
            raise ValueError(
                f"inputs have {parts} rows and labels {len(self.y)}: give as many, a row for each"
                " sample, for elastic training deals samples by row"
            )
        if self.variants and not (isinstance(self.x, Tensor) and self.x.dim() == 4):
            raise ValueError("variants are for images (N, C, H, W): set variants to 0")

    def __len__(self) -> int:
        return len(self.y)

    def batches(
        self, batch_size: int, *, shuffle: Literal[False] = False
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield all inputs and labels as they lie; training takes rows in an `order`."""
        for rows in torch.arange(len(self)).split(batch_size):
            yield self.inputs(rows), self.y[rows]

    def inputs(self, rows: Tensor, variant: int = 0) -> Any:
        """Return the inputs of samples."""
        if not isinstance(self.x, Tensor):
            return tree.map_tensors(lambda part: part[rows], self.x)
        x = self.x[rows]
        if not self.variants:
            return x
        generator = generator_for(self.seed, "variant", variant % self.variants)
        top_N, left_N, flip_N = draw_windows(len(self), generator)
        return windows(x, top_N[rows], left_N[rows], flip_N[rows])


def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the epoch's permutation, int64 (N,)."""
    return torch.randperm(samples, generator=generator_for(seed, "order", epoch))


def parts_of(rows: Tensor, replicas: int, micro: int) -> list[list[Tensor]]:
    """Return a global batch as the micro-batches of every replica, as equal as can be."""
    return [list(tree.micro_batches(own, micro)) for own in tree.micro_batches(rows, replicas)]
