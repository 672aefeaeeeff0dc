"""Errors sent back by fixed random weights, in the networks of target propagation.

    row       what the output of block n is told; e is the loss's gradient by the logits
    bp        J_(n+1)^T ... J_(N-1)^T e
    fa        the same, with a random B in place of every W in J^T         Lillicrap et al. 2016
    dfa       B_n e, straight from the logits                              Nøkland 2016
    shallow   nothing: all blocks but the last stay as they were drawn

What is no weight, an activation or a pool, sends errors back exactly, and so does a whole block in
dfa. A B_n has a column for each value that its block gives, behind the pool: feature maps times
positions. A network of a rule is trained as with backprop, by the same steps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from alkit.base.seeds import generator_for
from alkit.dtp.networks import Net
from alkit.dtp.pieces import Affine, NoInverse, Piece

Send = Callable[[Tensor], Sequence[Tensor]]


class _Sent(Function):
    """Hand a tensor on; its gradient goes to it, and what `send` makes of it to the others."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, send: Send, *others: Tensor) -> Tensor:
        ctx.send = send
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None, *ctx.send(gradient)


class _Ruled(Net):
    """A network's own blocks under a rule: `net` itself is changed.

    Args:
        sample: a batch of inputs, which shapes are found by.
        seed: of the feedback.
    """

    def __init__(self, net: Net, sample: Tensor, seed: int) -> None:
        nn.Module.__init__(self)
        self.loss, self.blocks = net.loss, net.blocks


class FeedbackAlignment(_Ruled):
    """Every W^T of the backward pass is a B, the weight of the piece's feedback, which stays."""

    def __init__(self, net: Net, sample: Tensor, seed: int) -> None:
        super().__init__(net, sample, seed)
        for at, block in enumerate(self.blocks):
            generator = generator_for(seed, "feedback", at)
            for piece in block.pieces:
                if isinstance(piece, Affine):
                    _draw(piece.back.weight, piece.own.weight[0].numel(), generator)
                elif [*piece.parameters()]:
                    raise NoInverse(f"{piece} has weights: feedback alignment knows Conv, Dense")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C)."""
        for block in self.blocks:
            for piece in block.pieces:
                x = _aligned(piece, x) if isinstance(piece, Affine) else piece(x)[0]
        return x


class DirectFeedbackAlignment(_Ruled):
    """Every block but the last is told B_n e; `direct_n` (classes, ...) is the B of block n."""

    def __init__(self, net: Net, sample: Tensor, seed: int) -> None:
        super().__init__(net, sample, seed)
        with torch.no_grad():
            *hidden, logits = (each.s for each in self.locally(sample))
        for n, s in enumerate(hidden):
            drawn = s.new_empty(logits.shape[1], *s.shape[1:])
            _draw(drawn, s[0].numel(), generator_for(seed, "direct", n))
            self.register_buffer(f"direct_{n}", drawn)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C)."""
        *hidden, logits = (each.s for each in self.locally(x))
        return _Sent.apply(logits, self._told, *hidden)

    def _told(self, error: Tensor) -> list[Tensor]:
        """Return the gradient that each block but the last is told."""
        sent = [getattr(self, f"direct_{n}") for n in range(len(self) - 1)]
        return [(error @ b.flatten(1)).view(len(error), *b.shape[1:]) for b in sent]


class Shallow(_Ruled):
    """The last block learns, the others don't."""

    def __init__(self, net: Net, sample: Tensor, seed: int) -> None:
        super().__init__(net, sample, seed)
        nn.ModuleList(self.blocks[:-1]).requires_grad_(False)


RULES: dict[str, Callable[[Net, Tensor, int], Net]] = {
    "fa": FeedbackAlignment,
    "dfa": DirectFeedbackAlignment,
    "shallow": Shallow,
}


def _aligned(piece: Piece, x: Tensor) -> Tensor:
    """Run a piece whose weight gets its own gradient, and whose input gets B's."""
    y, note = piece(x.detach())
    if not x.requires_grad:
        return y
    return _Sent.apply(y, lambda error: (piece.feedback(error, note),), x)


@torch.no_grad()
def _draw(weight: Tensor, length: int, generator: torch.Generator) -> None:
    """Draw as forward weights are drawn, uniform within 1 / sqrt(length)."""
    bound = 1 / math.sqrt(length)
    weight.uniform_(-bound, bound, generator=generator)
