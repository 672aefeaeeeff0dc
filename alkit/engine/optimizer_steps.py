"""Steps of torch's optimisers, written out so that they can be a part of a compiled call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Known(NamedTuple):
    """An optimiser whose step is written out here.

    Attributes:
        states: of a parameter, by the optimiser's own names.
        options: of a group, constants of the compiled step.
        step: of (parameter, gradient, states, rate, options), returns the parameter.
    """

    states: tuple[str, ...]
    options: tuple[str, ...]
    step: Callable[..., Tensor]


def _adam(
    p: Tensor, g: Tensor, states: Sequence[Tensor], rate: Tensor, options: Mapping[str, Any]
) -> Tensor:
    count, first, second = states
    (beta1, beta2), decay = options["betas"], options["weight_decay"]
    if decay and options["decoupled_weight_decay"]:
        p = p * (1 - rate * decay)
    elif decay:
        g = g + decay * p
    count.add_(1)
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    size = rate / (1 - beta1**count)
    return p - size * first / ((second / (1 - beta2**count)).sqrt() + options["eps"])


def _sgd(
    p: Tensor, g: Tensor, states: Sequence[Tensor], rate: Tensor, options: Mapping[str, Any]
) -> Tensor:
    if options["weight_decay"]:
        g = g + options["weight_decay"] * p
    if momentum := options["momentum"]:
        states[0].mul_(momentum).add_(g)
        g = g + momentum * states[0] if options["nesterov"] else states[0]
    return p - rate * g


DECAY = ("betas", "eps", "weight_decay", "decoupled_weight_decay")
ADAM = _Known(("step", "exp_avg", "exp_avg_sq"), DECAY, _adam)
SGD = _Known(("momentum_buffer",), ("momentum", "weight_decay", "nesterov"), _sgd)
KNOWN = {torch.optim.SGD: SGD, torch.optim.Adam: ADAM, torch.optim.AdamW: ADAM}
UNUSUAL = ("amsgrad", "maximize", "differentiable", "dampening", "capturable")  # not written out


class Slot(NamedTuple):
    """Who updates a parameter: an optimiser, a group of it, and its options."""

    optimizer: torch.optim.Optimizer
    group: int
    known: _Known
    options: dict[str, Any]

    def states(self, parameter: nn.Parameter) -> list[Tensor]:
        """Return the states that the optimiser keeps of a parameter, made as it makes them."""
        if self.known is SGD and not self.options["momentum"]:
            return []
        held = self.optimizer.state[parameter]
        for name in self.known.states:
            if held.get(name) is None:
                new = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
                held[name] = new.to(parameter.device)
        return [held[name] for name in self.known.states]


def slots_of(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, Slot]] | None:
    """Return who updates an optimiser's parameters, None if its step is not written out here."""
    known = KNOWN.get(type(optimizer))
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if known is None or any(hooks) or "step" in vars(optimizer):
        return None
    if any(group.get(name) for group in optimizer.param_groups for name in UNUSUAL):
        return None
    return [
        (p, Slot(optimizer, at, known, {name: group.get(name) for name in known.options}))
        for at, group in enumerate(optimizer.param_groups)
        for p in group["params"]
    ]
