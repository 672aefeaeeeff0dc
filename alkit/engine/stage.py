"""Stages, which executors run: their protocol, a graph between two cuts, a block as a stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from alkit.base import tree
from alkit.engine.device import place

Gradients = list[Tensor | None]


class Stage(Protocol):
    """The mathematics of one stage; the engine sees to order, hand-over and threads."""

    @property
    def parts(self) -> Sequence[Any]:
        """The parts that training changes; ranks share them after a run, by `state_dict`."""

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take the output of the previous stage (stage 0: the batch); return input for the next."""

    def backward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take the result of the next stage's backward; return the same for the previous one."""

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimisers."""


class Inputs:
    """The inputs of a module, or copies if it writes there (`ReLU(inplace=True)`).

    A leaf of the graph can't be written to, and others may need it. A copy of the first input shows
    whether the module writes.
    """

    def __init__(self) -> None:
        self.copied: list[Tensor] | None = None  # the last one; empty for a module that won't write

    def __call__(self, x: Any) -> Any:
        """Return x, or the copy."""
        if self.copied is not None and not any(own._version for own in self.copied):
            self.copied = []
            return x
        x = tree.map_tensors(torch.clone, x)
        self.copied = [*tree.tensors(x)]
        return x


@dataclass
class Graph:
    """The graph of a block between two cuts: a forward keeps it, a backward goes down it once."""

    x: Any  # its tensors are leaves if they want a gradient, see `leaf`
    output: Any  # nested or not; of a last block the loss

    @property
    def inputs(self) -> list[Tensor]:
        """The leaves of the input, whose gradients are handed on."""
        return [tensor for tensor in tree.tensors(self.x) if tensor.requires_grad]

    def roots(self, above: Gradients | None) -> tuple[list[Tensor], list[Tensor]]:
        """Return where a backward begins, and the gradients there.

        `above` has one for each tensor of the output that can have one, None if the next block does
        not use it. It is None for a loss, and empty where nothing is handed down.
        """
        found = [tensor for tensor in tree.tensors(self.output) if tree.differentiable(tensor)]
        above = [torch.ones_like(root) for root in found] if above is None else above
        pairs = zip(found, above or [None] * len(found), strict=True)
        both = [(root, own) for root, own in pairs if root.requires_grad and own is not None]
        return [root for root, _ in both], [own for _, own in both]

    def backward(self, above: Gradients | None) -> Gradients:
        """Add to the gradients of the block's parameters, and return those of the inputs."""
        roots, gradients = self.roots(above)
        if roots:  # a block may be frozen
            torch.autograd.backward(roots, gradients)
        return [tensor.grad for tensor in self.inputs]

    def gradients(
        self, above: Gradients | None, leaves: Sequence[Tensor], *, again: bool = False
    ) -> Gradients:
        """Return the gradients of leaves only; `again` if the graph is needed for others."""
        roots, gradients = self.roots(above)
        if not leaves or not roots:  # a detach may leave no roots
            return [None] * len(leaves)
        options = {"allow_unused": True, "retain_graph": again}
        return list(torch.autograd.grad(roots, leaves, gradients, **options))


def leaf(tensor: Tensor, wants: bool = True) -> Tensor:
    """Cut a tensor off from its graph, as a leaf if it wants and can have a gradient."""
    return tensor.detach().requires_grad_(wants and tree.differentiable(tensor))


class BlockStage:
    """A block under backprop; the last one has the loss of (output, y), the others pass y on."""

    def __init__(
        self,
        block: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        self.block, self.optimizer, self.loss = block, optimizer, loss
        self.inputs = Inputs()
        self.kept: dict[tuple[int, int], Graph] = {}
        self.parts = [block] if optimizer is None else [block, optimizer]

    def forward(self, payload: tuple[Any, Tensor], batch: int, micro: int) -> Any:
        """Take (x, y) and hand on (output, y)."""
        x, y = payload
        x = tree.map_tensors(leaf, place(x, self.block))
        output = self.block(self.inputs(x))
        if self.loss is not None:
            output = self.loss(output, place(y, self.block))
        self.kept[batch, micro] = Graph(x, output)
        return None if self.loss is not None else (tree.detach(output), y)

    def backward(self, payload: Gradients | None, batch: int, micro: int) -> Gradients:
        """Take the gradients of floating output tensors, return those of the input tensors."""
        return self.kept.pop((batch, micro)).backward(place(payload, self.block))

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step and clear the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
