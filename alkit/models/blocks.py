"""Make a network a list of blocks, which every method takes."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from math import nan
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from alkit.base import tree
from alkit.base.arguments import given
from alkit.engine.modes import evaluating, hooked, trained
from alkit.engine.random import random_from
from alkit.models.foreign import layered
from alkit.models.looks import untouched
from alkit.models.traced import NotTraced, trace

LISTS = (nn.Sequential.forward, nn.Module.forward)  # the latter: nobody wrote one
INSTEAD = 'Give a list of its blocks, each taking what the one before returns, or method="bp"'
SAME = 1e-4  # share of the norm by which blocks may differ from their network


def as_blocks(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return a network as a list of blocks, each taking what the one before returns.

    Args:
        blocks: a list of them, an `nn.Sequential`, or a network, which is cut at its own blocks
            (Hugging Face's, `foreign.py`) or by its graph (`traced.py`). Modules are not copied.
    Raises:
        TypeError: a network that can't be followed, or something that isn't a module.
        ValueError: there are no blocks.

    Example:
        >>> import alkit, torchvision
        >>> len(alkit.blocks(torchvision.models.resnet18()))
        8
    """
    blocks = getattr(blocks, "_orig_mod", blocks)  # of torch.compile
    blocks = blocks.module if isinstance(blocks, nn.DataParallel) else blocks
    found = [*blocks] if _listed(blocks) else _cut(blocks)
    if not found:
        raise ValueError("there are no blocks: give at least one")
    for index, block in enumerate(found):
        if not isinstance(block, nn.Module):
            raise TypeError(f"block {index} must be a module, got {given(block)}")
    return found


def grouped(
    blocks: nn.Module | Iterable[nn.Module], begins: Callable[[list[nn.Module], nn.Module], bool]
) -> list[nn.Module]:
    """Return the blocks of a network, each joined to the group before it unless it `begins` one."""
    groups: list[list[nn.Module]] = []
    for block in as_blocks(blocks):
        if groups and not begins(groups[-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
    return [own[0] if len(own) == 1 else nn.Sequential(*own) for own in groups]


def sending_one(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks of a network, joined where one hands on several: a link sends one value."""
    return grouped(blocks, lambda group, _: not getattr(group[-1], "several", False))


def learning(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks of a network; one without parameters joins the block before it.

    Those at the beginning join the first that has some.
    """
    return grouped(blocks, lambda group, own: _has(own) and any(map(_has, group)))


def _has(block: nn.Module) -> bool:
    return next(block.parameters(), None) is not None


def ours(model: Any) -> bool:
    """Say whether a model is one of alkit's own, which methods train as it is."""
    kinds = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    return "alkit" in kinds and hasattr(model, "predict")


def _listed(network: Any) -> TypeGuard[Iterable[nn.Module]]:
    """Say whether this is a list of blocks, and calling it does no more than calling these."""
    if not isinstance(network, nn.Module | Iterable):
        raise TypeError(f"the model is {given(network)}: give a network, or a list of its blocks")
    if not isinstance(network, nn.Module) or ours(network):
        return isinstance(network, Iterable)
    own = "forward" in vars(network) or type(network).forward not in LISTS or hooked(network)
    return isinstance(network, Iterable) and not own


def _cut(network: Any) -> list[nn.Module]:
    kind = type(network)
    branches = kind.__module__.startswith(("transformers.", "peft."))
    try:
        found = (layered(network) if branches else []) or trace(network)
        around = set(network.modules()).difference(*(block.modules() for block in found))
        if any(map(hooked, around)):
            raise NotTraced("it has hooks of its own, which no block would call: hook its parts")
    except NotTraced as error:
        raise TypeError(f"blocks is a whole {kind.__name__}, and {error}. {INSTEAD}") from error
    vars(found[0])["cut"] = network, found  # until a sample shows that they are the same
    return found


class Whole(nn.Module):
    """A network that stays uncut; several inputs are its arguments, unless it takes only one."""

    def __init__(self, module: nn.Module, *, logits: bool = True) -> None:
        super().__init__()
        self.module, self.logits = module, logits
        takes = [*inspect.signature(module.forward).parameters.values()]
        self.only = takes[0].name if len(takes) == 1 and takes[0].kind < 2 else ""  # 2: *several

    def forward(self, x: Any, **labels: Any) -> Any:
        """Return the output for a batch: with labels its loss, its logits if wanted."""
        if isinstance(x, Mapping) and (not self.only or self.only in x):
            output = self.module(**x, **labels)
        elif isinstance(x, list | tuple) and not self.only:
            output = self.module(*x, **labels)
        else:
            output = self.module(x, **labels)
        if labels:
            return output.loss
        return getattr(output, "logits", output) if self.logits else output


def cut_once(model: Any, *, uncut: bool, logits: bool = True) -> Any:
    """Return a network as a list of blocks, or of one block if it stays uncut; others as given."""
    if _listed(model) or ours(model):
        return model
    return [Whole(model, logits=logits)] if uncut else as_blocks(model)


def dry_run(
    blocks: Iterable[nn.Module], sample: Any, *, graph: bool = False
) -> list[tuple[nn.Module, Any]]:
    """Return every block with its output for the sample, in evaluation mode: buffers stay.

    Raises:
        NotTraced: the blocks of a network that was cut make something else than it does.
    """
    found = as_blocks(blocks)
    for part in found[0].modules():
        if "cut" in vars(part):
            network, own = vars(part)["cut"]
            _check_cut(network, own, sample)
            del part.cut
    pairs, x = [], sample
    for block in found:
        parameter = next(block.parameters(), None)
        left = nullcontext() if graph else untouched(block)  # a loss may read what a block keeps
        with left, evaluating(block), torch.set_grad_enabled(graph):
            x = block(x if parameter is None else tree.to_device(x, parameter.device))
        pairs.append((block, x))
    return pairs


def _check_cut(network: nn.Module, blocks: list[nn.Module], x: Any) -> None:
    """Compare a network with its blocks on a sample, in both modes: scores and their gradients."""
    places = {each.device for each in network.parameters()}
    if len(places) != 1:
        return  # blocks that were moved one by one: the network itself can't be called any more
    x, both = tree.to_device(x, *places), nn.ModuleList([Whole(network), nn.Sequential(*blocks)])
    weights = [each for each in network.parameters() if each.requires_grad]
    for mode in (evaluating, trained)[: tree.batch_size(x)]:  # BatchNorm trains on two and more
        found = []
        for each in both:
            with untouched(both), mode(both), random_from("cut"), torch.enable_grad():
                found.append(_made_of(each, weights, x))
        if not all(tree.near(one, other, SAME) for one, other in zip(*found, strict=True)):
            raise NotTraced(
                f"{type(network).__name__} cut into blocks computes something else than it does"
                f" itself: its forward does more than its blocks show. {INSTEAD}"
            )


def _made_of(net: nn.Module, weights: list[nn.Parameter], x: Any) -> list[Tensor]:
    """Return scores, and gradients of their squares; nan where there is none."""
    scores = [each for each in tree.tensors(net(x)) if each.is_floating_point()]
    totals = [each.square().mean() for each in scores if each.requires_grad]
    own = weights if totals else []
    slopes = torch.autograd.grad(totals, own, allow_unused=True) if own else ()
    return scores + [torch.tensor(nan) if each is None else each for each in slopes]


PASSING = (nn.Identity, nn.Dropout, nn.Softmax, nn.LogSoftmax, nn.Flatten, nn.Unflatten)


def ends_in_scores(blocks: Iterable[nn.Module]) -> bool:
    """Say whether the last output is scores: the last layer that computes is linear."""
    leaves = [leaf for block in blocks for leaf in block.modules() if not [*leaf.children()]]
    computing = [leaf for leaf in leaves if not isinstance(leaf, PASSING)]
    return bool(computing) and isinstance(computing[-1], nn.Linear)
