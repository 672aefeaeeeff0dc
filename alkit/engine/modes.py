"""Set the modes of the parts of a module for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def hooked(module: nn.Module) -> bool:
    """Say whether calling a module calls hooks of its own, too."""
    own = (module._forward_hooks, module._forward_pre_hooks)
    return any((*own, module._backward_hooks, module._backward_pre_hooks))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode; every part has its own mode back after."""
    with _back(module):
        module.eval()
        yield


@contextmanager
def trained(model: object) -> Iterator[None]:
    """Put a model, or its blocks, in training mode, see `training`; parts have theirs back."""
    with _back(*(blocks := _modules(model))):
        for block in blocks:
            training(block)
        yield


def training(module: nn.Module) -> None:
    """Call `train()` of a part, which a user may have written.

    A part in evaluation mode that has parameters, all of them frozen, stays so, with all in it.
    """
    still = [part for part in module.modules() if not part.training and _frozen(part)]
    module.train()
    for part in still:
        part.eval()


def _frozen(part: nn.Module) -> bool:
    own = list(part.parameters())
    return bool(own) and not any(each.requires_grad for each in own)


@contextmanager
def layout_kept(model: object) -> Iterator[list[nn.Parameter]]:
    """Lay weights out again as they were: bp and AL keep channels of pictures innermost meanwhile.

    Weights that are taken out of the yielded list stay as they are.
    """
    parameters = (own for block in _modules(model) for own in block.parameters())
    rows = [own for own in parameters if own.is_contiguous()]
    try:
        yield rows
    finally:
        for own in rows:
            own.data = own.data.contiguous()


def _modules(model: object) -> list[nn.Module]:
    given = model if isinstance(model, list | tuple) else [model]
    return [each for each in given if isinstance(each, nn.Module)]


@contextmanager
def _back(*modules: nn.Module) -> Iterator[None]:
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        for part, was in before:
            part.training = was
