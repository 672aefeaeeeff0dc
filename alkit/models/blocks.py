"""A network as a list of blocks: what every method takes."""

from collections.abc import Iterable

from torch import nn

from alkit.data.arguments import given

__all__ = ["as_blocks"]


def as_blocks(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks as a list.

    Raises:
        TypeError: a whole network, or something that is no module.
        ValueError: there are none.
    """
    if isinstance(blocks, nn.Module) and not isinstance(blocks, Iterable):
        raise TypeError(
            f"blocks is a whole {type(blocks).__name__}: give a list of its blocks or an"
            " nn.Sequential, each taking what the one before returns"
        )
    found = list(blocks)
    for index, block in enumerate(found):
        if not isinstance(block, nn.Module):
            raise TypeError(f"block {index} must be a module, got {given(block)}")
    if not found:
        raise ValueError("there are no blocks: give at least one")
    return found
