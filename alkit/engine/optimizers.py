"""Optimisers as factories: one way to make them for all methods."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from alkit.base.arguments import check_real, given

Factory = Callable[..., torch.optim.Optimizer]
RATE = 1e-3  # the default of every method that follows a gradient


def adam(parameters: Iterable[nn.Parameter], lr: float = RATE) -> torch.optim.Optimizer:
    """Return Adam in its fused form: the same mathematics in one pass, several times faster."""
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def made(
    factory: Factory, named: Iterable[tuple[str, nn.Parameter]], **options: Any
) -> torch.optim.Optimizer | None:
    """Return the optimiser of what learns among these parameters; None if nothing does."""
    pairs = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if not pairs:
        return None
    wanted = {id(parameter): name for name, parameter in pairs}
    found = factory([each for _, each in pairs], **options)
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(f"optimizer= makes {given(found)}: it must return a torch.optim.Optimizer")
    held = {id(each) for group in found.param_groups for each in group["params"]}
    if missing := [name for key, name in wanted.items() if key not in held]:
        raise ValueError(
            f"optimizer= leaves out {', '.join(missing[:3])}, one of {len(wanted)} parameters: what"
            " is not to learn is frozen (requires_grad_(False)), or has the rate 0"
        )
    if len(held) > len(wanted):
        raise ValueError("optimizer= holds more than the parameters that it was given")
    return found


def clipped(factory: Factory, norm: float) -> Factory:
    """Return a factory whose optimisers shorten their gradients before each step.

    Args:
        norm: the largest norm of all gradients that one optimiser holds.

    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
        >>> data = torch.randn(64, 8), torch.randint(3, (64,))
        >>> clipped = alkit.clipped(torch.optim.SGD, 1.0)
        >>> alkit.fit(blocks, data, optimizer=clipped, lr=0.1, progress=False).best_epoch
        1
    """
    check_real("norm", norm)

    def clip(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        held = [each for group in optimizer.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(held, norm)

    @functools.wraps(factory, updated=())
    def make(*arguments: Any, **options: Any) -> torch.optim.Optimizer:
        own = factory(*arguments, **options)
        own.register_step_pre_hook(clip)
        return own

    return make


def rated(factory: Any, lr: Any) -> tuple[Factory, Any]:
    """Return a factory that may be called with a rate, and the rate: `lr`, or else its own."""
    if not callable(factory):
        raise TypeError(
            f"optimizer= is {given(factory)}: give what makes one, such as"
            " lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr)"
        )
    found = inspect.signature(factory).parameters
    if "lr" in found:
        own = found["lr"].default
        return factory, own if lr is None and isinstance(own, float) else lr
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return factory, lr
    if lr is not None:
        raise ValueError(f"lr is {lr}, and optimizer= takes none: leave it out, or let it take lr=")

    @functools.wraps(factory)
    def without(parameters: Any, lr: float | None = None) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = factory(parameters)
        return made

    return without, lr
