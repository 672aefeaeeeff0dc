"""Plain backprop over the same list of blocks: the twin that every method is compared with."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from math import nan
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base import tree
from alkit.base.arguments import check_real
from alkit.data.labels import check_shares
from alkit.engine.device import place
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import adam, made
from alkit.engine.random import noise_of
from alkit.models.blocks import as_blocks


class BPModel(nn.Module):
    """Blocks in a row and one loss at the end; iterate it for the blocks.

    Args:
        blocks: modules, each taking what the one before returns; the last gives scores (B, C).
        lr: learning rate of the one optimiser.
        loss: of (scores, y); default cross-entropy.
        optimizer: called as `optimizer(parameters, lr=...)`; default fused Adam.
        first: number of the first block in the network that these are a part of.
        clip: largest norm of all gradients together; None for no limit.
    """

    head = None  # of layers that train by themselves

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        lr: float = 1e-3,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        optimizer: Callable[..., torch.optim.Optimizer] = adam,
        *,
        first: int = 0,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        check_real("clip", clip)
        self.first, self.clip = first, clip
        self.blocks = nn.ModuleList(as_blocks(blocks))
        self.loss_fn: Callable[[Any, Any], Tensor]
        vars(self)["loss_fn"] = loss  # its tensors aren't weights of the network
        self.optimizer = made(optimizer, self.blocks.named_parameters(), lr=lr)
        self.batches_trained: Tensor
        self.register_buffer("batches_trained", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.blocks)

    def __getitem__(self, index: int) -> nn.Module:
        return self.blocks[index]

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the one optimiser, as "optimizer"."""
        return {"optimizer": self.optimizer}

    def forward(self, x: Any, key: tuple[int, int] | None = None, **labels: Any) -> Tensor:
        """Return scores (B, C), with their graph.

        Args:
            key: seed and batch: random operators draw by them and by the number of the block, so
                noise does not depend on where blocks are.
        """
        for index, block in enumerate(self.blocks, self.first):
            with nullcontext() if key is None else noise_of(block, key[0], index, key[1]):
                x = block(place(x, block), **labels)
        return x

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return scores (B, C) in evaluation mode, without gradient; the mode is restored."""
        with evaluating(self):
            return self(x)

    def label_input(self, y: Tensor) -> Tensor:
        """Return y, after a look at it if the loss compares classes."""
        if self.loss_fn is F.cross_entropy and y.is_floating_point():
            check_shares(y)
        return y

    def loss(self, x: Any, y: Tensor, key: tuple[int, int] | None = None) -> Tensor:
        """Return the loss of a batch, a scalar with its graph; y as the loss takes it."""
        labels = {"labels": place(y, self)} if self.loss_fn is own_loss else {}
        scores, loss = self(x, key, **labels), self.loss_fn
        with nullcontext() if key is None else noise_of(loss, key[0], "loss", key[1]):
            y = tree.to_device(y, next(tree.tensors(scores)).device)
            return compared(self.loss_fn, scores, y)


def own_loss(output: Tensor, _: Any) -> Tensor:
    """Stand for the loss that a network gives with labels; without them it is nan."""
    return output if output.dim() == 0 else output.new_tensor(nan)


def compared(loss_fn: Callable[[Any, Any], Tensor], scores: Any, y: Any) -> Tensor:
    """Return a loss; numbers are compared in the wider of both types."""
    if isinstance(scores, Tensor) and isinstance(y, Tensor) and y.is_floating_point():
        dtype = torch.promote_types(scores.dtype, y.dtype)
        scores, y = scores.to(dtype), y.to(dtype)
    return loss_fn(scores, y)
