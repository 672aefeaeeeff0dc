"""The modes of a module's parts, for a while."""

import warnings
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
def trained(model: object, *, warn: bool = True) -> Iterator[None]:
    """Put a model, or its blocks, in training mode, see `training`; parts have theirs back after.

    A model all in evaluation mode is worth a warning.
    """
    blocks = _modules(model)
    modes = [part.training for block in blocks for part in block.modules()]
    if warn and modes and not any(modes):
        warnings.warn(
            "the network is in evaluation mode: it is trained in training mode, and has its own"
            " back afterwards; what is to stay in it must be frozen (requires_grad_(False))",
            stacklevel=4,
        )
    with _back(*blocks):
        for block in blocks:
            training(block)
        yield


def training(module: nn.Module, around: bool = True) -> None:
    """Put a part, and what is in it, in training mode.

    One that has parameters, all of them frozen, and is in evaluation mode stays so, with all that
    is in it. One without parameters follows the nearest one around it that has some.
    """
    own = list(module.parameters())
    if own and not module.training and not any(each.requires_grad for each in own):
        return
    module.training = True if own else around
    for child in module.children():
        training(child, module.training)


@contextmanager
def layout_kept(model: object) -> Iterator[list[nn.Parameter]]:
    """Lay weights out again as they were: bp and AL keep pictures' channels innermost meanwhile.

    Yields the weights that this is about; one that is taken out stays as it is.
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
