"""Feedback for blocks of torch's own modules: each becomes the piece that has its inverse.

Conv2d, Linear                     Conv, Dense, with a feedback weight of their own
ELU, ReLU, LeakyReLU, Tanh         Activation
MaxPool2d, AdaptiveAvgPool2d       MaxPool, AvgPool
Flatten, Identity, Sequential      Reshape, nothing, what it holds
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu

from alkit.dtp.block import Block
from alkit.dtp.invertible import (
    Activation,
    Affine,
    AvgPool,
    Conv,
    Dense,
    MaxPool,
    NoInverse,
    Piece,
    Reshape,
)
from alkit.dtp.networks import Net, Switches
from alkit.engine.modes import hooked
from alkit.engine.steps import check_untied
from alkit.models.blocks import as_blocks

Found = tuple[Piece, nn.Module]


def from_blocks(
    blocks: nn.Module | Iterable[nn.Module],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    seed: int = 0,
    switches: Switches | None = None,
) -> Net:
    """Return a network of these blocks that target propagation trains; it trains their weights.

    A block without weights is joined to the one before.

    Args:
        blocks: as `alkit.blocks` takes them; the last one's output are the scores.
        loss: of (scores, y), a mean over the samples.
        seed: of the feedback weights.
        switches: how feedback is built; `activation` is the blocks' own.
    Raises:
        NoInverse: a module that has no inverse here; names it and says what has one.

    Example:
        >>> from torch import nn
        >>> from alkit import dtp
        >>> blocks = [nn.Sequential(nn.Linear(8, 8), nn.ELU()), nn.Linear(8, 3)]
        >>> dtp.from_blocks(blocks).trained
        [1]
    """
    groups: list[list[Found]] = []
    for number, block in enumerate(as_blocks(blocks)):
        found = list(_pieces(block, switches or Switches(), f"block {number}"))
        if groups and not any(isinstance(piece, Affine) for piece, _ in found):
            groups[-1] += found
        elif found:
            groups.append(found)
    made = [Block(*(piece for piece, _ in group)) for group in groups]
    net = Net("blocks", made, loss=loss, seed=seed)
    for piece, module in (pair for group in groups for pair in group):
        if isinstance(piece, Affine):  # the blocks' weights as they are
            piece.weight = cast("nn.Parameter", module.weight)
            piece.bias = cast("nn.Parameter | None", module.bias)
            piece.to(piece.weight)  # feedback is where they are, in their dtype
    check_untied("blocks", net.blocks)
    return net


def _pieces(module: nn.Module, switches: Switches, where: str) -> Iterator[Found]:
    if hooked(module):
        raise NoInverse(f"{module} in {where} has hooks, which no piece would call: take them off")
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child in module:
            yield from _pieces(child, switches, where)
        return
    if isinstance(module, nn.Identity):
        return
    make = PIECES.get(type(module))
    piece = None if make is None else make(module, switches)
    if piece is None:
        known = ", ".join(sorted(kind.__name__ for kind in PIECES))
        text = str(module) if not list(module.children()) else type(module).__name__
        raise NoInverse(
            f"{text} in {where} has no inverse here: take {known} in an nn.Sequential (square"
            " kernels, no groups or dilation), or write an alkit.dtp.invertible.Piece"
        )
    yield piece, module


def _conv(own: nn.Conv2d, switches: Switches) -> Piece | None:
    sizes = [_side(size) for size in (own.kernel_size, own.stride, own.padding)]
    plain = own.groups == 1 and own.dilation == (1, 1) and own.padding_mode == "zeros"
    if not plain or None in sizes:
        return None
    kernel, stride, padding = cast("list[int]", sizes)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "bias": own.bias is not None}
    return Conv(own.in_channels, own.out_channels, kernel, **options)


def _side(size: Any) -> int | None:
    """Return the one number of a size, (3, 3) or 3; None of (3, 5) and of words."""
    sides = {size} if not isinstance(size, tuple) else set(size)
    side = sides.pop() if len(sides) == 1 else None
    return side if isinstance(side, int) else None


def _dense(own: nn.Linear, switches: Switches) -> Piece:
    return Dense(own.in_features, own.out_features, bias=own.bias is not None)


def _max_pool(own: nn.MaxPool2d, switches: Switches) -> Piece | None:
    sizes = [_side(size) for size in (own.kernel_size, own.stride, own.padding)]
    if _side(own.dilation) != 1 or own.ceil_mode or None in sizes:
        return None
    return MaxPool(*cast("list[int]", sizes), add=switches.add)


def _mean_pool(own: nn.AdaptiveAvgPool2d, switches: Switches) -> Piece | None:
    side = _side(own.output_size)
    return None if side is None else AvgPool(side, transpose=switches.add)


def _flat(own: nn.Flatten, switches: Switches) -> Piece | None:
    return Reshape() if (own.start_dim, own.end_dim) == (1, -1) else None


def _activation(name: str, **wanted: float) -> Callable[[Any, Switches], Piece | None]:
    def make(own: nn.Module, switches: Switches) -> Piece | None:
        same = all(getattr(own, key) == value for key, value in wanted.items())
        return Activation(name, matched=switches.matched) if same else None

    return make


def _leaky(own: nn.LeakyReLU, switches: Switches) -> Piece:
    piece = Activation("leaky_relu", matched=switches.matched)
    piece.name = f"leaky_relu {own.negative_slope}"
    piece.function = piece.back = partial(leaky_relu, negative_slope=own.negative_slope)
    return piece


PIECES: dict[type[nn.Module], Callable[[Any, Switches], Piece | None]] = {
    nn.Conv2d: _conv,
    nn.Linear: _dense,
    nn.MaxPool2d: _max_pool,
    nn.AdaptiveAvgPool2d: _mean_pool,
    nn.Flatten: _flat,
    nn.ELU: _activation("elu", alpha=1.0),
    nn.ReLU: _activation("relu"),
    nn.LeakyReLU: _leaky,
    nn.Tanh: _activation("tanh"),
}
