"""A residual block and its inverse.

    forward     z = a(conv1 x);  y = a(conv2 z + shortcut x)
    feedback    v = a(y);        conv1^T a(conv2^T v) + shortcut^T v

Without batch normalisation, as in all published runs. Even with copied weights this is not the
transpose: the inner activation acts on what comes back, and z is not there.
"""

from typing import Any

from torch import Tensor

from alkit.dtp.invertible import ACTIVATIONS, Conv, Piece


class Residual(Piece):
    """Two 3 x 3 convolutions beside a shortcut; a 1 x 1 convolution where the shape changes."""

    def __init__(
        self, inputs: int, outputs: int, stride: int = 1, *, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.act = ACTIVATIONS[activation][0]
        self.first = Conv(inputs, outputs, stride=stride, bias=False)
        self.second = Conv(outputs, outputs, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            None if same else Conv(inputs, outputs, 1, stride=stride, padding=0, bias=False)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return the block's output; the note holds the shapes on the way."""
        z, first = self.first(x)
        y, second = self.second(self.act(z))
        if self.shortcut is None:
            return self.act(y + x), (first, second, None)
        beside, third = self.shortcut(x)
        return self.act(y + beside), (first, second, third)

    def feedback(self, y: Tensor, note: Any) -> Tensor:
        """Go back along both paths."""
        first, second, third = note
        v = self.act(y)
        main = self.first.feedback(self.act(self.second.feedback(v, second)), first)
        return main + (v if self.shortcut is None else self.shortcut.feedback(v, third))
