"""A block under backprop as a stage of a schedule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from alkit.data import tree

__all__ = ["BlockStage"]


class BlockStage:
    """A block under backprop: takes the gradient of its output, hands on that of its input.

    Args:
        loss: of (output, y) for the last block; the others pass y on.
        optimizer: of the block's own parameters; None if it has none.
    """

    def __init__(
        self,
        block: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        self.block, self.optimizer, self.loss = block, optimizer, loss
        self.kept: dict[tuple[int, int], tuple[Any, Any]] = {}

    def forward(self, payload: tuple[Any, Tensor], batch: int, micro: int) -> Any:
        """Take (x, y), keep the graph, hand on (output, y)."""
        x, y = payload
        x = tree.map_tensors(_leaf, x)
        output = self.block(x)
        if self.loss is not None:
            output = self.loss(output, y)
        self.kept[batch, micro] = x, output
        return None if self.loss is not None else (tree.detach(output), y)

    def backward(
        self, payload: list[Tensor | None] | None, batch: int, micro: int
    ) -> list[Tensor | None]:
        """Take the gradients of the output's floating tensors, return those of the input's.

        A tensor that the next block leaves alone, such as an LSTM's last states, has None.
        """
        x, output = self.kept.pop((batch, micro))
        roots = [tensor for tensor in tree.tensors(output) if tensor.requires_grad]
        if payload is None:
            torch.autograd.backward(roots)  # the loss
        else:
            found = [pair for pair in zip(roots, payload, strict=True) if pair[1] is not None]
            torch.autograd.backward([root for root, _ in found], [own for _, own in found])
        return [tensor.grad for tensor in tree.tensors(x) if tensor.requires_grad]

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step and clear the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())
