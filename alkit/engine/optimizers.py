"""Optimisers as factories, one way to make them for all methods; and the work around a step."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from alkit.base.arguments import check_real, given
from alkit.engine.compiled import no_compilation

Factory = Callable[..., torch.optim.Optimizer]
RATE = 1e-3  # the default of every method that follows a gradient


def adam(parameters: Iterable[nn.Parameter], lr: float = RATE) -> torch.optim.Optimizer:
    """Return Adam in its fused form: the same mathematics in one pass, several times faster."""
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def made(
    factory: Factory, named: Iterable[tuple[str, nn.Parameter]], **options: Any
) -> torch.optim.Optimizer | None:
    """Return an optimiser of those parameters that learn; None if none does."""
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
    """Return a factory whose optimisers shorten their gradients to a norm before each step.

    The norm is of all gradients that one optimiser holds.

    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
        >>> data = torch.randn(64, 8), torch.randint(3, (64,))
        >>> clipped = alkit.clipped(torch.optim.SGD, 1.0)
        >>> alkit.fit(blocks, data, optimizer=clipped, lr=0.1, progress=False).best_epoch
        1
    """
    check_real("norm", norm)

    @functools.wraps(factory, updated=())
    def make(*arguments: Any, **options: Any) -> torch.optim.Optimizer:
        own = factory(*arguments, **options)
        own.register_step_pre_hook(lambda optimizer, *_: _clip(optimizer, norm))
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
    if "lr" in found or any(each.kind is each.VAR_KEYWORD for each in found.values()):
        own = found["lr"].default if "lr" in found else None
        return factory, own if lr is None and isinstance(own, float) else lr
    if lr is not None:
        raise ValueError(f"lr is {lr}, and optimizer= takes none: leave it out, or let it take lr=")
    return functools.wraps(factory)(lambda parameters, lr=None: factory(parameters)), lr


def backward(module: nn.Module, losses: Iterable[Tensor]) -> None:
    """Leave the gradients of the losses of a batch in the parameters."""
    module.zero_grad(set_to_none=True)
    torch.autograd.backward([loss for loss in losses if loss.requires_grad])


def step(optimizer: torch.optim.Optimizer | None, clip: float | None = None) -> None:
    """Step once, if there is something to train; `clip` limits the norm of all gradients."""
    if optimizer is None:
        return
    if clip is not None:
        _clip(optimizer, clip)
    with no_compilation():
        optimizer.step()


def _clip(optimizer: torch.optim.Optimizer, norm: float) -> None:
    held = [each for group in optimizer.param_groups for each in group["params"]]
    nn.utils.clip_grad_norm_(held, norm)


def check_untied(kind: str, parts: Iterable[nn.Module]) -> None:
    """See that no two parts share a parameter: each would update it, at different moments."""
    owner: dict[int, tuple[int, str]] = {}
    for at, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            other, its_name = owner.setdefault(id(parameter), (at, name))
            if other != at:
                raise ValueError(
                    f"{kind} {other} and {at} share a parameter ({its_name} and {name}): untie it,"
                    " or have both uses in one of them"
                )


def check_reached(blocks: Iterable[nn.Module], first: int = 0) -> None:
    """See after the first backward that every block learns, and name parameters that do not."""
    for number, block in enumerate(blocks, first):
        own = {name: each for name, each in block.named_parameters() if each.requires_grad}
        idle = [name for name, each in own.items() if each.grad is None]
        said = f"block {number} ({type(block).__name__}) can learn and gets no gradient"
        if own and len(idle) == len(own):
            raise ValueError(
                f"{said}: something above it detaches, or gives whole numbers; freeze it"
                " (requires_grad_(False)) if that is meant"
            )
        if idle:
            warnings.warn(f"{said} for {', '.join(idle)}, by the first batch", stacklevel=2)
