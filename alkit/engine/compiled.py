"""`torch.compile` for blocks, on request."""

from collections.abc import Iterable

from torch import nn

__all__ = ["compile_blocks"]


def compile_blocks(blocks: Iterable[object]) -> None:
    """Let blocks run compiled from their next call on; parameters, names and state stay.

    Noise still follows its key where a compiled block draws by operators that take a generator;
    where it does not, its first forward says so (`alkit.engine.random`).
    """
    for block in blocks:
        if isinstance(block, nn.Module):
            block.compile()
