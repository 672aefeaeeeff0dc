"""A network as a list of blocks: what every method takes."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from alkit.data import tree
from alkit.data.arguments import given
from alkit.models.foreign import CUTS, cut
from alkit.models.modes import evaluating, hooked
from alkit.models.traced import Block, NotTraced, trace


def as_blocks(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return a network as a list of blocks, each taking what the one before returns.

    Args:
        blocks: a list of them, an `nn.Sequential`, a network whose structure is known (see
            `alkit.models.foreign`), or any other whose forward torch.fx can follow (see
            `alkit.models.traced`). Modules are used as they are, not copied.
    Raises:
        TypeError: a network that can't be followed, or something that is no module.
        ValueError: there are no blocks.

    Example:
        >>> import alkit, torchvision
        >>> len(alkit.blocks(torchvision.models.resnet18()))
        10
    """
    found = _listed(blocks) if isinstance(blocks, nn.Module) else list(blocks)
    if found is None:
        try:
            return trace(cast("nn.Module", blocks))
        except NotTraced as error:
            known = ", ".join(f"{name} of {package}" for package, name in CUTS)
            raise TypeError(
                f"blocks is a whole {type(blocks).__name__}, and {error}. Give a list of its blocks"
                " or an nn.Sequential, each taking what the one before returns, or train it uncut"
                f' by method="bp"; alkit cuts {known} by their structure'
            ) from error
    for index, block in enumerate(found):
        if not isinstance(block, nn.Module):
            raise TypeError(f"block {index} must be a module, got {given(block)}")
    if not found:
        raise ValueError("there are no blocks: give at least one")
    return found


def sending_one(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return a network's blocks, joined where one hands on several values: a link sends one."""
    groups: list[list[nn.Module]] = [[]]
    for block in as_blocks(blocks):
        groups[-1].append(block)
        if not isinstance(block, Block) or block.live == 1:
            groups.append([])
    return [own[0] if len(own) == 1 else nn.Sequential(*own) for own in groups if own]


def ours(model: Any) -> bool:
    """Say whether a model is one of alkit's own, which methods train as it is."""
    kinds = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    return "alkit" in kinds and hasattr(model, "predict")


LISTS = (nn.Sequential.forward, nn.Module.forward)  # the latter: nobody wrote one


def _listed(network: nn.Module) -> list[nn.Module] | None:
    """Return the blocks of a network that is a list of them, or is known.

    Returns: None where its own forward says what it computes, or something that is taken apart
        has hooks, which no block would call.
    """
    if ours(network) and isinstance(network, Iterable):
        return list(network)
    found = cut(network)
    if found is None and isinstance(network, Iterable):
        own = "forward" in vars(network) or type(network).forward not in LISTS
        found = None if own else list(network)
    if found is None or not all(isinstance(each, nn.Module) for each in found):
        return found
    held = {part for block in found for part in block.modules()}
    return None if any(map(hooked, set(network.modules()) - held)) else found


class Whole(nn.Module):
    """A network that stays uncut.

    Several inputs are its arguments, in order or by name; if it takes one alone, they are that one.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        takes = [*inspect.signature(module.forward).parameters.values()]
        several = len(takes) != 1 or takes[0].kind in (
            takes[0].VAR_POSITIONAL,
            takes[0].VAR_KEYWORD,
        )
        self.only = "" if several else takes[0].name  # the one argument that it takes

    def forward(self, x: Any) -> Any:
        """Return what the network makes of a batch; of an output with logits, these."""
        if isinstance(x, Mapping) and (not self.only or self.only in x):
            output = self.module(**x)
        else:
            several = isinstance(x, list | tuple) and not self.only
            output = self.module(*x) if several else self.module(x)
        return getattr(output, "logits", output)


def cut_once(model: Any, *, uncut: bool) -> Any:
    """Return a network that is known by its graph alone as blocks; anything else as it is.

    Args:
        uncut: such a network stays one block.
    """
    if not isinstance(model, nn.Module | Iterable):
        raise TypeError(
            f"the model is {given(model)}: give a network, or a list of its blocks, each a module"
        )
    if not isinstance(model, nn.Module) or ours(model) or _listed(model) is not None:
        return model
    return [Whole(model)] if uncut else as_blocks(model)


def dry_run(
    blocks: Iterable[nn.Module], sample: Any, *, graph: bool = False
) -> list[tuple[nn.Module, Any]]:
    """Return every block with what it makes of the sample, in evaluation mode: buffers stay.

    Args:
        graph: a backward could follow.
    """
    pairs, x = [], sample
    for block in as_blocks(blocks):
        parameter = next(block.parameters(), None)
        with evaluating(block), torch.set_grad_enabled(graph):
            x = block(x if parameter is None else tree.to_device(x, parameter.device))
        pairs.append((block, x))
    return pairs


PASSING = (nn.Identity, nn.Dropout, nn.Softmax, nn.LogSoftmax, nn.Flatten, nn.Unflatten)


def ends_in_scores(blocks: Iterable[nn.Module]) -> bool:
    """Say whether the last output is scores: what computes last is a linear layer."""
    leaves = [leaf for block in blocks for leaf in block.modules() if not [*leaf.children()]]
    computing = [leaf for leaf in leaves if not isinstance(leaf, PASSING)]
    return bool(computing) and isinstance(computing[-1], nn.Linear)


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


def trainable(module: nn.Module) -> bool:
    """Say whether something in a module learns."""
    return any(each.requires_grad for each in module.parameters())
