"""A network as a list of blocks: what every method takes."""

from collections.abc import Iterable

from torch import nn

from alkit.data.arguments import given
from alkit.models.foreign import CUTS, cut

__all__ = ["as_blocks", "joined", "learns"]


def as_blocks(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return a network as a list of blocks, each taking what the one before returns.

    Args:
        blocks: a list of them, an `nn.Sequential`, or a network whose structure is known: see
            `alkit.models.foreign`. Modules are used as they are, not copied.
    Raises:
        TypeError: another network, or something that is no module.
        ValueError: there are no blocks.

    Example:
        >>> import alkit, torchvision
        >>> len(alkit.blocks(torchvision.models.resnet18()))
        10
    """
    if isinstance(blocks, nn.Module) and (own := cut(blocks)) is not None:
        return own
    if isinstance(blocks, nn.Module) and not isinstance(blocks, Iterable):
        known = ", ".join(f"{name} of {package}" for package, name in CUTS)
        raise TypeError(
            f"blocks is a whole {type(blocks).__name__}: give a list of its blocks or an"
            f" nn.Sequential, each taking what the one before returns; alkit cuts {known} by itself"
        )
    found = list(blocks)
    for index, block in enumerate(found):
        if not isinstance(block, nn.Module):
            raise TypeError(f"block {index} must be a module, got {given(block)}")
    if not found:
        raise ValueError("there are no blocks: give at least one")
    return found


def joined(blocks: nn.Module | Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Return groups of neighbouring blocks, each with something to learn.

    A block without parameters (ReLU, pooling, flattening) joins the block before it, at the
    beginning the one after it.
    """
    groups: list[list[nn.Module]] = []
    for block in as_blocks(blocks):
        if groups and (not learns(block) or not any(map(learns, groups[-1]))):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def learns(block: nn.Module) -> bool:
    """Say whether a block has parameters."""
    return next(block.parameters(), None) is not None
