"""Networks of blocks: from modules of a user, or the published ones, as lists of torch modules.

simple_vgg    5 blocks conv-pool-act, 32 x 32 -> 1 x 1, and a linear head        published
lenet         2 blocks conv 5 x 5 with overlapping pools, 2 linear ones
tiny          3 blocks for pictures of 16 x 16, 24 32 48 channels                from this suite
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from alkit.base.seeds import generator_for
from alkit.dtp.block import Block, Pass
from alkit.dtp.pieces import PUBLISHED, Affine, Conv, Piece, Switches, pieces_of
from alkit.engine.device import place
from alkit.engine.optimizers import check_untied
from alkit.models.blocks import as_blocks


class Net(nn.Module):
    """Blocks 0 .. N - 1; the outputs of the last one are the logits.

    The feedback of block 0, to the pixels, is never trained or used. Every block has a generator of
    its own.

    Args:
        loss: of (output, y), a mean over the samples; its gradient gives the target of the output.
        given: forward weights stay as they are; otherwise they are drawn, as those of feedback.
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
        vars(self)["loss"] = loss  # its tensors aren't weights of the network
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))
        for at, block in enumerate(blocks):
            generator = generator_for(int(seed), "weights", at)
            for piece in block.affine:
                piece.initialise(generator, given=given)

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C), differentiable from end to end."""
        for block in self.blocks:
            x, _ = block(x)
        return x

    def locally(self, x: Tensor) -> list[Pass]:
        """Run all blocks, each on a detached input."""
        found: list[Pass] = []
        for block in self.blocks:
            found.append(block.locally(found[-1].s if found else x))
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
        """Return the name of a block as tables show it: conv_0, fc_3."""
        conv = any(isinstance(piece, Conv) for piece in self.blocks[block].pieces)
        return f"conv_{block}" if conv else f"fc_{block}"

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
        blocks: as `alkit.blocks` takes them; the outputs of the last one are the scores.
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
    **changes: Any,
) -> Net:
    """Return a network by name.

    Args:
        channels, side: of the pictures; default side 32, for "tiny" 16.
        seed: of all weights.
        changes: instead of what `NETWORKS` says: `pool=(3, 2, 0)` is lenet's in the published code.
    Raises:
        ValueError: an unknown name.
    """
    if name not in NETWORKS:
        raise ValueError(f"network is {name!r}: give {', '.join(NETWORKS)}")
    options = NETWORKS[name] | changes | ({} if side is None else {"side": side})
    with torch.device("meta"):  # the net draws weights, each block its own
        layers = _layers(channels, classes, activation, **options)
    made = [nn.Sequential(*layer).to_empty(device="cpu") for layer in layers]
    return Net([Block(layer, switches=switches) for layer in made], seed=seed)


def _layers(
    channels: int,
    classes: int,
    activation: Callable[[], nn.Module],
    *,
    side: int,
    widths: Sequence[int],
    kernel: int = 3,
    pool: Sequence[int] = (2, 2, 0),
    hidden: Sequence[int] = (),
) -> list[list[nn.Module]]:
    """Return blocks of conv, pool, activation, and of linear maps, the last one without activation.

    Of a growing function it is the same map as the published conv, activation, pool. The activation
    then runs on a quarter of the values; in the feedback, where it comes first, the same holds, and
    overlaps are added after it. The zeros of ReLU are ties, where the pool would choose otherwise,
    so it keeps the published order.
    """
    layers, (size, stride, padding) = list[list[nn.Module]](), pool
    for a, b in pairwise((channels, *widths)):
        act, pooled = activation(), nn.MaxPool2d(size, stride, padding)
        after = [act, pooled] if isinstance(act, nn.ReLU) else [pooled, act]
        layers.append([nn.Conv2d(a, b, kernel, padding=kernel // 2), *after])
    for _ in widths:
        side = (side + 2 * padding - size) // stride + 1
    for a, b in pairwise((widths[-1] * side**2, *hidden, classes)):
        layers.append([nn.Linear(a, b), activation()])
    layers[len(widths)].insert(0, nn.Flatten())
    layers[-1].pop()
    return layers


NETWORKS: dict[str, dict[str, Any]] = {
    "simple_vgg": {"side": 32, "widths": (128, 128, 256, 256, 512)},
    "lenet": {"side": 32, "widths": (32, 64), "kernel": 5, "pool": (3, 2, 1), "hidden": (512,)},
    "tiny": {"side": 16, "widths": (24, 32, 48)},
}
