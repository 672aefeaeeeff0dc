"""Cut blocks into modules for delayed gradients, each with an optimiser of its own.

blocks     0   1   2   3   4          cuts [2, 3]
modules    [ 0  1 ][ 2 ][ 3  4 ]      module k of K has delay K - 1 - k; the last one has the loss
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from alkit.engine.device import place
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import adam, check_untied, made
from alkit.engine.random import noise_of
from alkit.models.blocks import as_blocks

Loss = Callable[[Any, Any], Tensor]
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Span(nn.Module):
    """Neighbouring blocks that run as one stage; noise depends on their numbers, not on cuts."""

    def __init__(self, blocks: Iterable[nn.Module], first: int) -> None:
        super().__init__()
        self.blocks, self.first = nn.ModuleList(blocks), first

    def forward(self, x: Any, key: tuple[int | str, ...]) -> Any:
        """Run the blocks; random operators draw by (key, number of the block)."""
        for number, block in enumerate(self.blocks, self.first):
            with noise_of(block, *key, number):
                x = block(x)
        return x


class Pipeline(nn.Module):
    """Modules in a row, over which it iterates, a loss, and an optimiser a module.

    Args:
        blocks: each takes what the one before returns: tensors, in tuples, lists or dicts.
        loss: of (output of the last block, y), a mean over the samples.
        cuts: the first block of every module but the first.
        optimizer: makes an optimiser from the parameters of a module; called once a module.

    Raises:
        ValueError: cuts that aren't between blocks, or a parameter that two modules share.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        loss: Loss,
        cuts: Sequence[int] = (),
        optimizer: Optimizer = adam,
    ) -> None:
        super().__init__()
        blocks = as_blocks(blocks)
        whole, bounds = all(isinstance(cut, int) for cut in cuts), [0, *cuts, len(blocks)]
        if not whole or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(
                f"cuts {list(cuts)} for {len(blocks)} blocks: a cut falls between blocks, so give"
                f" rising block numbers between 1 and {len(blocks) - 1}, the first of every module"
                " but the first"
            )
        modules = nn.ModuleList(Span(blocks[low:high], low) for low, high in pairwise(bounds))
        self.modules_in_row = cast("Sequence[Span]", modules)
        self.loss_fn: Loss
        vars(self)["loss_fn"] = loss  # its tensors aren't weights of the network
        self.cuts = tuple(cuts)
        check_untied("modules", self)
        self.optimizers = [made(optimizer, module.named_parameters()) for module in self]
        self.batches_trained: Tensor
        self.register_buffer("batches_trained", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.modules_in_row)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.modules_in_row)

    def __getitem__(self, index: int) -> Span:
        return self.modules_in_row[index]

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers by the number of their module."""
        return {str(k): optimizer for k, optimizer in enumerate(self.optimizers)}

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Return the output of the last block in evaluation mode."""
        with evaluating(self):
            return self(x)

    def forward(self, x: Any) -> Any:
        """Return the output of the last block; noise, if any, is as for batch 0."""
        for module in self:
            x = module(place(x, module), (0, 0))
        return x


def even_cuts(blocks: int, modules: int) -> list[int]:
    """Return cuts into modules of as equal a number of blocks as can be, the larger ones first.

    Each has ceil(blocks / modules) blocks and the last one the rest, if that gives `modules`.

    Raises:
        ValueError: more modules than blocks, or none.
    """
    if not 1 <= modules <= blocks:
        raise ValueError(f"{modules} modules for {blocks} blocks: give 1 to {blocks}")
    size = -(-blocks // modules)
    if -(-blocks // size) == modules:
        return list(range(size, blocks, size))
    return [k * (blocks // modules) + min(k, blocks % modules) for k in range(1, modules)]
