"""Networks of blocks: of a user's modules, or the published ones, as lists of torch's.

simple_vgg    5 blocks conv-pool-act, 32 x 32 -> 1 x 1, and a linear head        published
simple_vgg2   the first block keeps its size: the head sees 2 x 2
lenet         2 blocks conv 5 x 5 with overlapping pools, 2 linear ones
tiny          3 blocks for pictures of 16 x 16, 24 32 48 channels                the suite's own
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.data.seeds import generator_for
from alkit.dtp.block import Block, Notes
from alkit.dtp.pieces import PUBLISHED, Affine, Conv, Piece, Switches, pieces_of
from alkit.engine.device import place
from alkit.engine.steps import check_untied
from alkit.models.blocks import as_blocks

Layers = list[list[nn.Module]]
Maker = Callable[..., Layers]  # of channels, side, classes, activation


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

    Block 0's feedback, to the pixels, is never trained or used. Every block has a generator of its
    own.

    Args:
        loss: of (output, y), a mean over the samples; its gradient gives the output's target.
        given: forward weights stay as they are; otherwise they are drawn, as the feedback's.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        seed: int = 0,
        given: bool = False,
    ) -> None:
        super().__init__()
        self.loss: Callable[[Tensor, Tensor], Tensor]
        vars(self)["loss"] = loss  # its tensors are no weights of the network
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))
        for at, block in enumerate(blocks):
            block.initialise(generator_for(int(seed), "weights", at), given=given)

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
        found = Pass([], [], [])
        for block in self.blocks:
            x = x.detach()
            found.inputs.append(x)
            x, notes = block(x)
            found.s.append(x)
            found.notes.append(notes)
        return found

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits without gradient."""
        return self(place(x, self))

    @property
    def trained(self) -> list[int]:
        """Numbers of the blocks whose feedback learns: all with weights but block 0."""
        return [n for n, block in enumerate(self.blocks) if n and block.affine]

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


def from_blocks(
    blocks: nn.Module | Iterable[nn.Module],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    seed: int = 0,
    switches: Switches = PUBLISHED,
) -> Net:
    """Return a network of these blocks that target propagation trains; it trains their weights.

    A block without weights is joined to the one before.

    Args:
        blocks: as `alkit.blocks` takes them; the last one's output are the scores.
        loss: of (scores, y), a mean over the samples.
        seed: of the feedback weights.
    Raises:
        NoInverse: a module that has no inverse here; names it and says what has one.

    Example:
        >>> from torch import nn
        >>> from alkit import dtp
        >>> blocks = [nn.Sequential(nn.Linear(8, 8), nn.ELU()), nn.Linear(8, 3)]
        >>> dtp.from_blocks(blocks).trained
        [1]
    """
    groups: list[list[Piece]] = []
    for number, block in enumerate(as_blocks(blocks)):
        found = list(pieces_of(block, switches, f"block {number}"))
        if groups and not any(isinstance(piece, Affine) for piece in found):
            groups[-1] += found
        elif found:
            groups.append(found)
    net = Net([Block(*group) for group in groups], loss=loss, seed=seed, given=True)
    check_untied("blocks", net.blocks)
    return net


def network(
    name: str,
    *,
    classes: int = 10,
    channels: int = 3,
    side: int | None = None,
    seed: int = 0,
    activation: Callable[[], nn.Module] = nn.ELU,
    switches: Switches = PUBLISHED,
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
    made, own_side = NETWORKS[name]
    with torch.device("meta"):  # the net draws weights, each block its own
        layers = made(channels, own_side if side is None else side, classes, activation, **options)
    real = [nn.Sequential(*layer).to_empty(device="cpu") for layer in layers]
    return Net([Block(each, switches=switches) for each in real], seed=seed)


def _conv_block(conv: nn.Module, act: nn.Module, *pool: nn.Module) -> list[nn.Module]:
    """conv, pool, activation: of a growing function the same map as the published conv, act, pool.

    The activation then runs on a quarter of the values; in the feedback, where it comes first, the
    same holds, and what overlaps is added after it. ReLU's zeros are ties between which the pool
    would choose otherwise, so it keeps the published order.
    """
    return [conv, act, *pool] if isinstance(act, nn.ReLU) else [conv, *pool, act]


def _vgg(*widths: int, first: int = 0) -> Maker:
    """Blocks that each halve the side; `first`: the width of one before them that does not."""

    def made(channels: int, side: int, classes: int, activation: Callable[[], nn.Module]) -> Layers:
        if side >> len(widths) < 1:
            need = 2 ** len(widths)
            raise ValueError(f"pictures of side {side}: {len(widths)} pools need {need}")
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1)  # noqa: E731
        layers = [_conv_block(conv(channels, first), activation())] if first else []
        for a, b in pairwise((first or channels, *widths)):
            layers.append(_conv_block(conv(a, b), activation(), nn.MaxPool2d(2)))
        last = (side >> len(widths)) ** 2 * widths[-1]
        return [*layers, [nn.Flatten(), nn.Linear(last, classes)]]

    return made


def _lenet(
    channels: int,
    side: int,
    classes: int,
    activation: Callable[[], nn.Module],
    padding: int = 1,
) -> Layers:
    layers, inputs = [], channels
    for outputs in (32, 64):
        conv = nn.Conv2d(inputs, outputs, 5, padding=2)
        layers.append(_conv_block(conv, activation(), nn.MaxPool2d(3, 2, padding)))
        inputs, side = outputs, (side + 2 * padding - 3) // 2 + 1
    if side < 1:
        raise ValueError("pictures are too small for two pools: give a side of at least 5")
    hidden = [nn.Flatten(), nn.Linear(64 * side * side, 512), activation()]
    return [*layers, hidden, [nn.Linear(512, classes)]]


NETWORKS: dict[str, tuple[Maker, int]] = {  # how it is made, the side of its pictures
    "simple_vgg": (_vgg(128, 128, 256, 256, 512), 32),
    "simple_vgg2": (_vgg(128, 256, 256, 512, first=128), 32),
    "lenet": (_lenet, 32),
    "tiny": (_vgg(24, 32, 48), 16),
}
