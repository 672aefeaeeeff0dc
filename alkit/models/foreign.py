"""A network with a list of layers, cut there: a block is its own forward, all else left out.

    network    embeddings    layer 0    layer 1    norm    head
    block 0    embeddings |
    block 1    -             layer 0 |
    block 2    -             -          layer 1 |
    block 3    -             -          -          norm    head

A part that is left out gives the output of the block before; a block ends behind its layer. Every
block does the work of forward between parts (masks, positions) for itself, so whole numbers of the
batch travel along. Networks of Hugging Face are cut so: they branch, and no graph shows them.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from alkit.base import tree


class Reached(Exception):
    """A block has made its part; the rest of forward is not its own."""


class Own(nn.Module):
    """The layer of a block; the first one reads what the embeddings have made."""

    def __init__(self, layer: nn.Module, came: list[Any], *, reads: bool) -> None:
        super().__init__()
        self.layer, self.came, self.reads = layer, came, reads

    def __getattr__(self, name: str) -> Any:
        layer = vars(self)["_modules"]["layer"]
        return layer if name == "layer" else getattr(layer, name)

    def forward(self, hidden: Any, *inputs: Any, **options: Any) -> Any:
        """End the forward of the block with the output of the layer."""
        raise Reached(self.layer(self.came[0] if self.reads else hidden, *inputs, **options))


class Left(nn.Module):
    """Stands for a part of another block: has its attributes, and shapes without numbers."""

    def __init__(self, part: nn.Module, came: list[Any], *, whole: bool, ends: bool) -> None:
        super().__init__()
        held = (*part.parameters(), *part.buffers())
        like = copy.deepcopy(part, {id(own): own.detach().to("meta") for own in held})
        vars(self).update(like=like, came=came, whole=whole, ends=ends)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["like"], name)

    def forward(self, *inputs: Any, **_: Any) -> Any:
        """Give the output of the block before, or end the block with its own."""
        if self.ends:
            raise Reached(inputs[0])
        if self.came[0] is None:
            raise RuntimeError(f"{type(self.like).__name__} is called before its network's layers")
        return self.came[0] if self.whole else next(tree.tensors(self.came[0]))


class Part(nn.Module):
    """A block: takes the input of the network, or (output of the block before, whole numbers)."""

    def __init__(self, net: nn.Module, came: list[Any], *, first: bool, last: bool) -> None:
        super().__init__()
        self.net, self.came, self.first, self.last = net, came, first, last

    def forward(self, x: Any) -> Any:
        """Return the same for the block after it; the last one returns scores."""
        made, batch = (None, x) if self.first else x if isinstance(x, tuple) else (x, x)
        self.came[:] = [made]
        try:
            if isinstance(batch, Mapping):
                output = self.net(**batch)
            else:
                output = self.net(*(batch if isinstance(batch, list | tuple) else [batch]))
        except Reached as reached:
            (made,) = reached.args
        else:
            if self.last:
                return getattr(output, "logits", output)
            raise RuntimeError(f"{type(self.net).__name__} has left one of its layers out")
        finally:
            self.came.clear()
        if [each.is_floating_point() for each in tree.tensors(batch)] != [True]:
            return made, batch
        return made if isinstance(made, Tensor) else (made, next(tree.tensors(made)))


def layered(net: nn.Module) -> list[nn.Module]:
    """Return a network as blocks; none without a list of layers, or if a weight is in no part."""
    lists = [(name, own) for name, own in net.named_modules() if isinstance(own, nn.ModuleList)]
    name, layers = max(lists, key=lambda pair: len(pair[1]), default=("", nn.ModuleList()))
    path = name.split(".")
    way = [net.get_submodule(".".join(path[:depth])) for depth in range(len(path))]
    if len(layers) < 2 or any(own._parameters or "forward" in vars(own) for own in way):
        return []
    sides: list[list[nn.Module]] = [[], []]  # before and behind the list, as they are registered
    for own, into in zip(way, path, strict=True):
        places = [*own._modules]
        for side, part in enumerate(own.children()):
            sides[places.index(into) < side] += [] if places[side] == into else [part]
    return [_part(net, [*layers], at, sides) for at in range(-1, len(layers) + 1)]


def _part(net: nn.Module, layers: list[nn.Module], at: int, sides: list[list[nn.Module]]) -> Part:
    """Return the block of a layer, or of the parts before the layers (-1) or behind them."""
    came, first, last = list[Any](), at < 0, at == len(layers)
    own = [*sides[0]] * first + [*sides[1]] * last
    parts: dict[int, nn.Module] = {id(part): part for part in own}
    for part in (*sides[0], *sides[1]):
        if part not in own and next(part.parameters(), None) is not None:
            parts[id(part)] = Left(part, came, whole=False, ends=False)
    for index, layer in enumerate(layers):
        left = Left(layer, came, whole=True, ends=first and not index)
        parts[id(layer)] = Own(layer, came, reads=not index) if index == at else left
    return Part(copy.deepcopy(net, parts), came, first=first, last=last)
