"""The pieces of a block: each runs forward, and has an inverse of its own for the feedback.

    piece        forward F                 feedback G, of what F returned
    Conv         convolution, W            transposed convolution, B of W's shape
    Dense        x W^T + b                 y B^T, B of W^T's shape
    Activation   a(z)                      the same function again, or a matched one
    MaxPool      window maxima             values put back at their places
    AvgPool      window means              values repeated, or the transpose
    Reshape      flatten                   the shape that it had

`forward` returns (y, note): what the feedback has to know, as a value and not as hidden state, for
the same block runs on clean and on noisy inputs. Feedback maps have no bias: only differences of
them matter.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.grad import conv2d_weight

Function = Callable[[Tensor], Tensor]


class NoInverse(ValueError):
    """A piece of a block has no feedback."""


class Piece(nn.Module):
    """An invertible piece of a block."""

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return (y, note)."""
        raise NotImplementedError

    def feedback(self, y: Tensor, note: Any) -> Tensor:
        """Map what lies in the space of `forward`'s output back to that of its input."""
        raise NotImplementedError


class Affine(Piece):
    """A map with a weight W and a bias forward, and a weight B of its own in the feedback."""

    bias: nn.Parameter | None

    def __init__(self, forward: Sequence[int], feedback: Sequence[int], bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*forward))
        self.bias = nn.Parameter(torch.empty(forward[0])) if bias else None
        self.feedback_weight = nn.Parameter(torch.empty(*feedback))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draw as torch does: uniform within 1 / sqrt(fan-in), forward and feedback apart."""
        bound = 1 / math.sqrt(self.weight[0].numel())
        self.weight.uniform_(-bound, bound, generator=generator)
        if self.bias is not None:
            self.bias.uniform_(-bound, bound, generator=generator)
        bound = 1 / math.sqrt(self.feedback_weight[0].numel())
        self.feedback_weight.uniform_(-bound, bound, generator=generator)

    def transposed(self) -> Tensor:
        """Return the B that makes the feedback the transpose of the forward map."""
        raise NotImplementedError

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        """Return the gradient of <outer, B inner> by B.

        Args:
            outer: in the space of the forward map's input.
            inner: in the space of its output.
        """
        raise NotImplementedError


class Conv(Affine):
    """A square convolution; the note is the input's shape.

    Args:
        bias: of the forward map.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int = 1,
        bias: bool = True,
    ) -> None:
        shape = (outputs, inputs, kernel, kernel)
        super().__init__(shape, shape, bias)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding), x.shape

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        """Apply the transposed convolution, to exactly the input's size whatever the stride."""
        kernel = self.weight.shape[-1]
        short = [
            size - ((small - 1) * self.stride - 2 * self.padding + kernel)
            for size, small in zip(note[2:], y.shape[2:], strict=True)
        ]
        weight = self.feedback_weight
        return F.conv_transpose2d(y, weight, None, self.stride, self.padding, short)

    def transposed(self) -> Tensor:
        return self.weight

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        shape = self.feedback_weight.shape
        return conv2d_weight(outer, shape, inner, self.stride, self.padding)


class Dense(Affine):
    """A linear map of rows."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__((outputs, inputs), (inputs, outputs), bias)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight, self.bias), None

    def feedback(self, y: Tensor, note: None) -> Tensor:
        return F.linear(y, self.feedback_weight)

    def transposed(self) -> Tensor:
        return self.weight.T

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        return outer.flatten(0, -2).T @ inner.flatten(0, -2)


def _identity(x: Tensor) -> Tensor:
    return x


def _leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.1)


def _matched_elu(h: Tensor) -> Tensor:
    """psi with psi'(elu(z)) = elu'(z): where h = e^z - 1 < 0, elu' is h + 1."""
    return torch.where(h < 0, h + h * h / 2, h)


def _matched_tanh(h: Tensor) -> Tensor:
    """psi with psi'(tanh z) = tanh'(z) = 1 - h^2."""
    return h - h**3 / 3


# forward, and the feedback whose slope at the activation is the forward's (None: there is none)
ACTIVATIONS: dict[str, tuple[Function, Function | None]] = {
    "elu": (F.elu, _matched_elu),
    "tanh": (torch.tanh, _matched_tanh),
    "leaky_relu": (_leaky, _leaky),
    "identity": (_identity, _identity),
    "relu": (F.relu, None),
}


class Activation(Piece):
    """An activation; as published its feedback applies the same function to the activation.

    Args:
        name: of `ACTIVATIONS`.
        matched: take the feedback whose Jacobian is the forward's, so that a copied weight gives
            exactly the transpose.
    Raises:
        ValueError: an unknown name.
        NoInverse: nothing matches it: at ReLU's kink, where half of all units sit, it has no slope.
    """

    def __init__(self, name: str = "elu", *, matched: bool = False) -> None:
        super().__init__()
        if name not in ACTIVATIONS:
            raise ValueError(f"activation is {name!r}: give {', '.join(ACTIVATIONS)}")
        self.name, self.matched = name, matched
        self.function, other = ACTIVATIONS[name]
        back = other if matched else self.function
        if back is None:
            others = ", ".join(key for key, pair in ACTIVATIONS.items() if pair[1])
            raise NoInverse(f"no feedback matches {name}: take {others}, or matched=False")
        self.back = back

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.function(x), None

    def feedback(self, y: Tensor, note: None) -> Tensor:
        return self.back(y)

    def extra_repr(self) -> str:
        return f"{self.name}, matched={self.matched}"


class MaxPool(Piece):
    """Maxima of windows; the note is where they were, and the input's shape.

    Args:
        add: where windows overlap, add what comes back to one place, as the transpose does. As
            published one of the values overwrites the others.
    """

    def __init__(self, kernel: int = 2, stride: int = 2, padding: int = 0, *, add: bool = False):
        super().__init__()
        self.kernel, self.stride, self.padding, self.add = kernel, stride, padding, add

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, torch.Size]]:
        y, places = F.max_pool2d(x, self.kernel, self.stride, self.padding, return_indices=True)
        return y, (places, x.shape)

    def feedback(self, y: Tensor, note: tuple[Tensor, torch.Size]) -> Tensor:
        """Put the values where the maxima were, and zeros elsewhere."""
        places, shape = note
        wide = y.new_zeros((*y.shape[:2], shape[2] * shape[3]))
        put = wide.scatter_add if self.add else wide.scatter
        return put(2, places.flatten(2), y.flatten(2)).view(*y.shape[:2], *shape[2:])

    def extra_repr(self) -> str:
        return f"{self.kernel}, {self.stride}, {self.padding}, add={self.add}"


class AvgPool(Piece):
    """Means of windows, so many a side; the note is the input's shape.

    Args:
        transpose: in the feedback divide by the window's area. As published values are repeated.
    """

    def __init__(self, side: int = 1, *, transpose: bool = False) -> None:
        super().__init__()
        self.side, self.transpose = side, transpose

    def forward(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        return F.adaptive_avg_pool2d(x, self.side), x.shape

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        """Spread the values over the windows."""
        wide = F.adaptive_avg_pool2d(y, (note[2], note[3]))
        return wide * (self.side**2 / note[2:].numel()) if self.transpose else wide


class Reshape(Piece):
    """Flatten samples to rows; the note is the input's shape."""

    def forward(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        return x.flatten(1), x.shape

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        return y.reshape(len(y), *note[1:])
