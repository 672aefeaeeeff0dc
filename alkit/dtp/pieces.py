"""The pieces of a block: modules of torch, each with an inverse for the feedback.

    piece        forward F: the module             feedback G, of the output of F
    Conv         nn.Conv2d, W                      nn.ConvTranspose2d, B shaped as W
    Dense        nn.Linear, x W^T + b              nn.Linear, y B^T, B shaped as W^T
    Activation   nn.ELU, nn.Tanh, ...              the same function again, or a matched one
    MaxPool      nn.MaxPool2d                      values put back at their places
    AvgPool      nn.AdaptiveAvgPool2d              values repeated, or the transpose
    Reshape      nn.Flatten                        the shape that it had

`forward` returns (y, note). The note holds all that the feedback has to know, as a value and not as
hidden state, because the same block runs on clean and on noisy inputs. Feedback maps have no bias:
only differences of them matter.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.grad import conv2d_weight
from torch.nn.utils import skip_init

from alkit.engine.modes import hooked


class NoInverse(ValueError):
    """A part of a block has no feedback."""


@dataclass(frozen=True)
class Switches:
    """How feedback is built; the defaults are as published.

    Attributes:
        matched: the feedback activation has the Jacobian of the forward one, so that a copied
            weight gives exactly the transpose.
        add: unpooling adds where windows overlap, and average pooling has its transpose. As
            published one of the values overwrites the others, and means are repeated.
    """

    matched: bool = False
    add: bool = False


PUBLISHED, EXACT = Switches(), Switches(matched=True, add=True)


class Piece(nn.Module):
    """A module with an inverse.

    Args:
        own: the module.
    """

    def __init__(self, own: Any, switches: Switches = PUBLISHED) -> None:
        super().__init__()
        self.own, self.switches = own, switches

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return (y, note), by default the shape of x."""
        return self.own(x), x.shape

    def feedback(self, y: Tensor, note: Any) -> Tensor:
        """Map a tensor in the space of the output of `forward` back to the space of its input."""
        raise NotImplementedError


class Affine(Piece):
    """A module with a weight W, and `back` with a weight B for the feedback."""

    def __init__(self, own: Any, switches: Switches, kind: Any, *sizes: Any, **options: Any):
        super().__init__(own, switches)
        there = {"device": own.weight.device, "dtype": own.weight.dtype}
        self.back: Any = skip_init(kind, *sizes, **options, **there, bias=False)

    @torch.no_grad()
    def initialise(self, generator: Generator, *, given: bool) -> None:
        """Draw as torch does: uniform within 1 / sqrt(fan-in), forward and feedback apart.

        Args:
            given: the forward weights stay as they are.
        """
        own, back = self.own, self.back.weight
        for weight, like in ((own.weight, own.weight), (own.bias, own.weight), (back, back)):
            if weight is not None:
                bound = 1 / math.sqrt(like[0].numel())
                drawn = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
                drawn.uniform_(-bound, bound, generator=generator)
                weight.copy_(weight if given and weight is not back else drawn)

    def transposed(self) -> Tensor:
        """Return the B that makes the feedback the transpose of the forward map."""
        own: Tensor = self.own.weight
        return own.T if own.dim() == 2 else own

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        """Return the gradient of <outer, B inner> by B, outer in the space of the input of F."""
        raise NotImplementedError


class Conv(Affine):
    """A convolution."""

    def __init__(self, own: nn.Conv2d, switches: Switches = PUBLISHED) -> None:
        sizes = own.out_channels, own.in_channels, own.kernel_size
        same = {name: getattr(own, name) for name in ("stride", "padding", "dilation", "groups")}
        super().__init__(own, switches, nn.ConvTranspose2d, *sizes, **same)

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        """Apply the transposed convolution, to exactly the input's size whatever the stride."""
        return self.back(y, output_size=note[2:])

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        own = self.own
        sizes = own.stride, own.padding, own.dilation, own.groups
        return conv2d_weight(outer, self.back.weight.shape, inner, *sizes)


class Dense(Affine):
    """A linear map of rows."""

    def __init__(self, own: nn.Linear, switches: Switches = PUBLISHED) -> None:
        super().__init__(own, switches, nn.Linear, own.out_features, own.in_features)

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        return self.back(y)

    def feedback_gradient(self, outer: Tensor, inner: Tensor) -> Tensor:
        return outer.flatten(0, -2).T @ inner.flatten(0, -2)


class Activation(Piece):
    """An activation; as published its feedback applies the same function to the activation.

    Raises:
        NoInverse: nothing matches it. ReLU has no slope at its kink, where half of all units sit.
    """

    def __init__(self, own: nn.Module, switches: Switches = PUBLISHED) -> None:
        super().__init__(own, switches)
        if switches.matched and isinstance(own, nn.ReLU):
            raise NoInverse("no feedback matches ReLU: take ELU, LeakyReLU, Tanh or matched=False")

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self._applied(x), None

    def feedback(self, y: Tensor, note: None) -> Tensor:
        """Apply the same function, or psi with psi'(a(z)) = a'(z)."""
        if not self.switches.matched or isinstance(self.own, nn.LeakyReLU):
            return self._applied(y)
        if isinstance(self.own, nn.Tanh):
            return y - y**3 / 3
        return torch.where(y < 0, self.own.alpha * y + y * y / 2, y)

    def _applied(self, x: Tensor) -> Tensor:
        """Leave the input as it is, which others read: an activation in place has its own."""
        return self.own(x.clone() if getattr(self.own, "inplace", False) else x)


class MaxPool(Piece):
    """Maxima of windows; the note is where they were, and the shape of the input."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, torch.Size]]:
        names = "kernel_size", "stride", "padding", "dilation", "ceil_mode"
        own = {name: getattr(self.own, name) for name in names}
        y, places = F.max_pool2d(x, **own, return_indices=True)
        return y, (places, x.shape)

    def feedback(self, y: Tensor, note: tuple[Tensor, torch.Size]) -> Tensor:
        """Put the values where the maxima were, and zeros elsewhere."""
        places, shape = note
        wide = y.new_zeros((*y.shape[:2], shape[2] * shape[3]))
        put = wide.scatter_add if self.switches.add else wide.scatter
        return put(2, places.flatten(2), y.flatten(2)).view(*y.shape[:2], *shape[2:])


class AvgPool(Piece):
    """Means of windows."""

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        """Spread the values over the windows."""
        wide = F.adaptive_avg_pool2d(y, (note[2], note[3]))
        return wide * (y.shape[2:].numel() / note[2:].numel()) if self.switches.add else wide


class Reshape(Piece):
    """Samples as rows."""

    def feedback(self, y: Tensor, note: torch.Size) -> Tensor:
        return y.reshape(len(y), *note[1:])


PIECES: dict[type[nn.Module], type[Piece]] = {
    nn.AdaptiveAvgPool2d: AvgPool,
    nn.Conv2d: Conv,
    nn.ELU: Activation,
    nn.Flatten: Reshape,
    nn.LeakyReLU: Activation,
    nn.Linear: Dense,
    nn.MaxPool2d: MaxPool,
    nn.ReLU: Activation,
    nn.Tanh: Activation,
}


def pieces_of(module: nn.Module, switches: Switches, where: str) -> Iterator[Piece]:
    """Yield the pieces of a module, of all that an `nn.Sequential` holds; a `Piece` is one.

    Args:
        where: for messages, such as "block 2".
    Raises:
        NoInverse: a module that has no inverse here; names it and says what has one.
    """
    if isinstance(module, Piece):
        yield module
    elif hooked(module):
        raise NoInverse(f"{module} in {where} has hooks, which noise would call: take them off")
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child in module:
            yield from pieces_of(child, switches, where)
    elif not isinstance(module, nn.Identity):
        kind, padding = PIECES.get(type(module)), getattr(module, "padding", 0)
        other = isinstance(padding, str) or getattr(module, "padding_mode", "zeros") != "zeros"
        if isinstance(module, nn.Flatten):
            other = (module.start_dim, module.end_dim) != (1, -1)
        if kind is None or other:
            text = str(module) if not list(module.children()) else type(module).__name__
            known = ", ".join(kind.__name__ for kind in PIECES)
            raise NoInverse(
                f"{text} in {where} has no inverse here: take {known} in an nn.Sequential (padding"
                " by zeros, in numbers; rows of a whole sample), or write an alkit.dtp.Piece"
            )
        yield kind(module, switches)
