"""Block n of a network: the forward map F_n and the feedback map G_n, in one place.

    s_n = F_n(s_(n-1))         pieces, first to last
    G_n(s_n)                   their inverses, last to first

In most blocks G is linear in its one weight: G(y) = R B psi(y), with psi all that comes before B in
the feedback (unpooling, activation) and R a reshape. The closed-form gradients rest on that.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from alkit.dtp.invertible import Affine, NoInverse, Piece, Reshape

Notes = list[Any]


class Linear(NamedTuple):
    """Where the one weight of a feedback stands among the pieces."""

    piece: Affine
    at: int


class Block(nn.Module):
    """Pieces in the order of the forward map.

    Raises:
        NoInverse: a part is no `Piece`; names it.
    """

    def __init__(self, *pieces: nn.Module) -> None:
        super().__init__()
        for piece in pieces:
            if not isinstance(piece, Piece):
                raise NoInverse(
                    f"{type(piece).__name__} has no feedback: take Conv, Dense, Activation,"
                    " MaxPool, AvgPool or Reshape, or write a Piece with a feedback"
                )
        self.pieces = cast("Sequence[Piece]", nn.ModuleList(pieces))

    def forward(self, x: Tensor) -> tuple[Tensor, Notes]:
        """Return (y, notes), the notes that `feedback` needs."""
        notes: Notes = []
        for piece in self.pieces:
            x, note = piece(x)
            notes.append(note)
        return x, notes

    def feedback(self, y: Tensor, notes: Notes) -> Tensor:
        """Return G(y), in the space of the input; the notes say which forward pass it inverts."""
        return self._back(y, notes, 0)

    @cached_property
    def linear(self) -> Linear | None:
        """The weight that the feedback is linear in; None if there are several or other parts."""
        own = [at for at, piece in enumerate(self.pieces) if any(True for _ in piece.parameters())]
        if len(own) != 1 or not isinstance(piece := self.pieces[own[0]], Affine):
            return None
        if any(not isinstance(before, Reshape) for before in self.pieces[: own[0]]):
            return None
        return Linear(piece, own[0])

    def weighed(self) -> Linear:
        """Return `linear`.

        Raises:
            NoInverse: the feedback is not linear in one weight.
        """
        if self.linear is None:
            raise NoInverse("this block's feedback has no single weight: take form='autograd'")
        return self.linear

    def psi(self, y: Tensor, notes: Notes) -> Tensor:
        """Return what the feedback's weight is applied to."""
        return self._back(y, notes, self.weighed().at + 1)

    def weigh(self, inner: Tensor, notes: Notes) -> Tensor:
        """Apply the feedback's weight to what `psi` gives; the result is not reshaped yet."""
        piece, at = self.weighed()
        return piece.feedback(inner, notes[at])

    def flat(self, x: Tensor, notes: Notes) -> Tensor:
        """Give an input the shape that the weight of the feedback returns."""
        return x.flatten(1) if self.weighed().at else x

    def forward_parameters(self) -> list[nn.Parameter]:
        """Return W and b, of what learns."""
        named = self.named_parameters()
        return [p for name, p in named if "feedback" not in name and p.requires_grad]

    def feedback_parameters(self) -> list[nn.Parameter]:
        """Return B."""
        return [p for name, p in self.named_parameters() if "feedback" in name]

    def affine(self) -> Iterator[Affine]:
        """Yield all parts with weights."""
        return (part for part in self.modules() if isinstance(part, Affine))

    def initialise(self, generator: Generator) -> None:
        """Draw all weights."""
        for part in self.affine():
            part.initialise(generator)

    @torch.no_grad()
    def make_symmetric(self) -> None:
        """Copy forward weights into the feedback, transposed; biases become 0, as published."""
        for part in self.affine():
            part.feedback_weight.copy_(part.transposed())
            if part.bias is not None:
                part.bias.zero_()

    def _back(self, y: Tensor, notes: Notes, last: int) -> Tensor:
        """Go back through the pieces down to one of them."""
        for at in reversed(range(last, len(self.pieces))):
            y = self.pieces[at].feedback(y, notes[at])
        return y
