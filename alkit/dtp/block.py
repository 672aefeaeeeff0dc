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
from torch import Tensor, nn

from alkit.dtp.pieces import PUBLISHED, Affine, Piece, Reshape, Switches, pieces_of

Notes = list[Any]


class Pass(NamedTuple):
    """A block's forward pass: detached input, output, notes for the feedback; psi(s), if known."""

    x: Tensor
    s: Tensor
    notes: Notes
    base: Tensor | None = None


class Block(nn.Module):
    """Torch's modules in the order of the forward map, each as the `Piece` that has its inverse."""

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

    def locally(self, x: Tensor) -> Pass:
        """Return the pass of an input without its history: gradients stay inside the block."""
        x = x.detach()
        return Pass(x, *self(x))

    def feedback(self, y: Tensor, notes: Notes, last: int = 0) -> Tensor:
        """Return G(y), in the space of the input, by notes of a forward pass; piece `last` ends."""
        for at in reversed(range(last, len(self.pieces))):
            y = self.pieces[at].feedback(y, notes[at])
        return y

    @property
    def affine(self) -> list[Affine]:
        """All parts with weights."""
        return [piece for piece in self.pieces if isinstance(piece, Affine)]

    def psi(self, y: Tensor, notes: Notes) -> Tensor:
        """Return the input of the weight of a linear feedback."""
        return self.feedback(y, notes, self.at + 1)

    @cached_property
    def at(self) -> int:
        """The place of the first piece that does more than reshape."""
        return next(at for at, each in enumerate(self.pieces) if not isinstance(each, Reshape))

    @cached_property
    def linear(self) -> bool:
        """Whether the feedback is linear in one weight, which belongs to the piece at `at`."""
        weighed = [each for each in self.pieces if any(True for _ in each.parameters())]
        return weighed == self.affine[:1] == [self.pieces[self.at]]

    def forward_parameters(self) -> list[nn.Parameter]:
        """Return W and b of the pieces that learn."""
        back = {id(each) for each in self.feedback_parameters()}
        return [each for each in self.parameters() if id(each) not in back and each.requires_grad]

    def feedback_parameters(self) -> list[nn.Parameter]:
        """Return B."""
        return [piece.back.weight for piece in self.affine]

    @torch.no_grad()
    def make_symmetric(self) -> None:
        """Copy forward weights into the feedback, transposed; biases become 0, as published."""
        for piece in self.affine:
            piece.back.weight.copy_(piece.transposed())
            if piece.own.bias is not None:
                piece.own.bias.zero_()
