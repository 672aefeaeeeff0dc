"""The networks, as lists of blocks, and what they are made with.

    simple_vgg    5 blocks conv-pool-act, 32 x 32 -> 1 x 1, and a linear head        published
    simple_vgg2   the first block keeps its size: the head sees 2 x 2
    lenet         2 blocks conv 5 x 5 with overlapping pools, 2 linear ones
    tiny          3 blocks for pictures of 16 x 16, 24 32 48 channels                the suite's own

Sizes and counts stand in notebook 50 and are checked by the tests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.data.seeds import generator_for
from alkit.dtp.block import Block, Notes
from alkit.dtp.invertible import (
    Activation,
    Conv,
    Dense,
    MaxPool,
    Piece,
    Reshape,
)
from alkit.engine.device import place

Maker = Callable[..., list[Block]]  # of channels, side, classes, switches


@dataclass(frozen=True)
class Switches:
    """How feedback is built; the defaults are as published.

    Attributes:
        activation: of `alkit.dtp.invertible.ACTIVATIONS`; none: the network's own.
        matched: the feedback's activation has the forward's Jacobian.
        add: unpooling adds where windows overlap, and average pooling has its transpose.
    """

    activation: str = ""
    matched: bool = False
    add: bool = False


EXACT = Switches(matched=True, add=True)


class Pass(NamedTuple):
    """One forward pass.

    Attributes:
        s: of every block, without history of the block before.
        inputs: of every block, detached.
        notes: of every block.
    """

    s: list[Tensor]
    inputs: list[Tensor]
    notes: list[Notes]


class Net(nn.Module):
    """Blocks 0 .. N - 1; the last one's output are the logits.

    Block 0's feedback, to the pixels, is never trained or used, and draws no random numbers that
    others would see: every block has a generator of its own.

    Args:
        loss: of (output, y), a mean over the samples; its gradient gives the output's target.
    """

    def __init__(
        self,
        name: str,
        blocks: Sequence[Block],
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.name = name
        self.loss: Callable[[Tensor, Tensor], Tensor]
        vars(self)["loss"] = loss  # its tensors are no weights of the network
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))
        for at, block in enumerate(blocks):
            block.initialise(generator_for(int(seed), "weights", at))

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C), differentiable from end to end."""
        for block in self.blocks:
            x, _ = block(x)
        return x

    def locally(self, x: Tensor) -> Pass:
        """Run all blocks, each on a detached input: gradients stay inside a block."""
        s, inputs, notes = [], [], []
        for block in self.blocks:
            x = x.detach()
            inputs.append(x)
            x, note = block(x)
            s.append(x)
            notes.append(note)
        return Pass(s, inputs, notes)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits without gradient."""
        return self(place(x, self))

    @property
    def trained(self) -> list[int]:
        """Numbers of the blocks whose feedback learns: all with weights but block 0."""
        return [n for n, block in enumerate(self.blocks) if n and block.feedback_parameters()]

    def named_optimizers(self) -> dict[str, None]:
        """Return none: its trainer has them."""
        return {}

    def label(self, block: int) -> str:
        """Return a block's name as tables show it: conv_0, fc_3."""
        kinds = [type(piece) for piece in self.blocks[block].pieces]
        return f"conv_{block}" if Conv in kinds else f"fc_{block}"

    def make_symmetric(self) -> None:
        """Copy all forward weights into the feedback and set biases to 0."""
        for block in self.blocks:
            block.make_symmetric()


def network(
    name: str,
    *,
    classes: int = 10,
    channels: int = 3,
    side: int | None = None,
    seed: int = 0,
    switches: Switches | None = None,
    **options: int,
) -> Net:
    """Return a network by name.

    Args:
        channels, side: of the pictures; default side 32, for "tiny" 16.
        seed: of all weights.
        options: of a network: `padding` of lenet's pools (1; 0 as in the published code).
    Raises:
        ValueError: an unknown name, or pictures that are too small; says what is allowed.
    """
    if name not in NETWORKS:
        raise ValueError(f"network is {name!r}: give {', '.join(NETWORKS)}")
    made, own_side, own_activation = NETWORKS[name]
    side = own_side if side is None else side
    if options and (name != "lenet" or set(options) != {"padding"}):
        raise ValueError(f"{name} has no {', '.join(options)}: lenet alone has an option, padding")
    switches = switches or Switches()
    switches = replace(switches, activation=switches.activation or own_activation)
    blocks = made(channels, side, classes, switches, **options)
    return Net(name, blocks, seed=seed)


def _conv_block(
    inputs: int, outputs: int, switches: Switches, kernel: int = 3, pool: MaxPool | None = None
) -> Block:
    """conv, pool, activation: of a growing function the same map as the published conv, act, pool.

    The activation then runs on a quarter of the values; in the feedback, where it comes first, the
    same holds, and what overlaps is added after it. ReLU's zeros are ties between which the pool
    would choose otherwise, so it keeps the published order.
    """
    conv = Conv(inputs, outputs, kernel, padding=kernel // 2)
    act = Activation(switches.activation, matched=switches.matched)
    after: tuple[Piece, ...] = (act,) if pool is None else (act, pool)
    return Block(conv, *(after if act.name == "relu" else reversed(after)))


def _vgg(*widths: int, first: int = 0) -> Maker:
    """Blocks that each halve the side; `first`: the width of one before them that does not."""

    def made(channels: int, side: int, classes: int, switches: Switches) -> list[Block]:
        if side >> len(widths) < 1:
            need = 2 ** len(widths)
            raise ValueError(f"pictures of side {side}: {len(widths)} pools need {need}")
        blocks = [_conv_block(channels, first, switches)] if first else []
        for a, b in pairwise((first or channels, *widths)):
            blocks.append(_conv_block(a, b, switches, pool=MaxPool(add=switches.add)))
        last = (side >> len(widths)) ** 2 * widths[-1]
        return [*blocks, Block(Reshape(), Dense(last, classes))]

    return made


def _lenet(
    channels: int, side: int, classes: int, switches: Switches, padding: int = 1
) -> list[Block]:
    blocks, inputs = [], channels
    for outputs in (32, 64):
        pool = MaxPool(3, 2, padding, add=switches.add)
        blocks.append(_conv_block(inputs, outputs, switches, 5, pool))
        inputs, side = outputs, (side + 2 * padding - 3) // 2 + 1
    if side < 1:
        raise ValueError("pictures are too small for two pools: give a side of at least 5")
    act = Activation(switches.activation, matched=switches.matched)
    hidden = Block(Reshape(), Dense(64 * side * side, 512), act)
    return [*blocks, hidden, Block(Dense(512, classes))]


# how it is made, the side of its pictures, its activation
NETWORKS: dict[str, tuple[Maker, int, str]] = {
    "simple_vgg": (_vgg(128, 128, 256, 256, 512), 32, "elu"),
    "simple_vgg2": (_vgg(128, 256, 256, 512, first=128), 32, "elu"),
    "lenet": (_lenet, 32, "elu"),
    "tiny": (_vgg(24, 32, 48), 16, "elu"),
}
