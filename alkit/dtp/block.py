"""Block n of a network: the forward map F_n and the feedback map G_n, in one place.

    s_n = F_n(s_(n-1))         pieces, first to last
    G_n(s_n)                   their inverses, last to first

In most blocks G is linear in its one weight: G(y) = R B psi(y), with psi all that comes before B in
the feedback (unpooling, activation) and R a reshape. The closed-form gradients rest on that.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from alkit.dtp.pieces import PUBLISHED, Affine, NoInverse, Piece, Reshape, Switches, pieces_of

Notes = list[Any]


class Linear(NamedTuple):
    """Where the one weight of a feedback stands among the pieces."""

    piece: Affine
    at: int


class Block(nn.Module):
    """Torch's modules in the order of the forward map, each as the `Piece` that has its inverse.

    Args:
        where: for messages.
    Raises:
        NoInverse: a module that has no inverse here.
    """

    def __init__(
        self, *modules: nn.Module, switches: Switches = PUBLISHED, where: str = "this block"
    ) -> None:
        super().__init__()
        found = [piece for each in modules for piece in pieces_of(each, switches, where)]
        self.pieces = cast("Sequence[Piece]", nn.ModuleList(found))

    def forward(self, x: Tensor) -> tuple[Tensor, Notes]:
        """Return (y, notes), the notes that `feedback` needs."""
        notes: Notes = []
        for piece in self.pieces:
            x, note = piece(x)
            notes.append(note)
        return x, notes

    def feedback(self, y: Tensor, notes: Notes, last: int = 0) -> Tensor:
        """Return G(y), in the space of the input.

        Args:
            notes: of the forward pass that is inverted.
            last: the piece to end with.
        """
        for at in reversed(range(last, len(self.pieces))):
            y = self.pieces[at].feedback(y, notes[at])
        return y

    @property
    def affine(self) -> list[Affine]:
        """All parts with weights."""
        return [piece for piece in self.pieces if isinstance(piece, Affine)]

    @cached_property
    def linear(self) -> Linear | None:
        """The weight that the feedback is linear in; None if there are several or other parts."""
        own = [at for at, piece in enumerate(self.pieces) if any(True for _ in piece.parameters())]
        if len(own) != 1 or not isinstance(piece := self.pieces[own[0]], Affine):
            return None
        before = all(isinstance(each, Reshape) for each in self.pieces[: own[0]])
        return Linear(piece, own[0]) if before else None

    def weighed(self) -> Linear:
        """Return `linear`.

        Raises:
            NoInverse: the feedback is not linear in one weight.
        """
        if self.linear is None:
            raise NoInverse("this block's feedback has no single weight: take form='autograd'")
        return self.linear

    def forward_parameters(self) -> list[nn.Parameter]:
        """Return W and b, of what learns."""
        back = {id(each) for each in self.feedback_parameters()}
        return [each for each in self.parameters() if id(each) not in back and each.requires_grad]

    def feedback_parameters(self) -> list[nn.Parameter]:
        """Return B."""
        return [piece.back.weight for piece in self.affine]

    def initialise(self, generator: Generator, *, given: bool) -> None:
        """Draw all weights; if forward ones are given, those of the feedback alone."""
        for piece in self.affine:
            piece.initialise(generator, given=given)

    @torch.no_grad()
    def make_symmetric(self) -> None:
        """Copy forward weights into the feedback, transposed; biases become 0, as published."""
        for piece in self.affine:
            piece.back.weight.copy_(piece.transposed())
            if piece.own.bias is not None:
                piece.own.bias.zero_()
