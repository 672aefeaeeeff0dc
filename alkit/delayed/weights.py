"""Keep the weights of one module at several moments, which is called stashing.

    updates      0        1        2
    newest                         w2      the parameters in the module
    held         w0       w1       w2      as long as a batch that is in flight needs them

A version is copied only where it would be lost: before a step, if it is still needed, the
parameters move to fresh storage. Otherwise a step in place would change the tensors that older
graphs have saved. torch would not notice, because a leaf made from `.data` has a version counter of
its own; a test holds it.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from alkit.engine.random import entered


class Versions:
    """Versions of the parameters of a module by the number of updates since this object was made.

    Without `stash` all graphs share the newest storage, whatever it holds.
    """

    def __init__(self, module: nn.Module, *, stash: bool = True) -> None:
        self.parameters = dict(module.named_parameters())
        self.stash = stash
        self.number = 0
        self.held = {0: self._data()}

    @property
    def newest(self) -> dict[str, Tensor]:
        """The newest version."""
        return self.held[self.number]

    def leaves(self, version: int) -> dict[str, Tensor]:
        """Return the parameters of a version as new leaves of a graph."""
        return {
            name: tensor.data.requires_grad_(self.parameters[name].requires_grad)
            for name, tensor in self.held[version].items()
        }

    def step(self, optimizer: torch.optim.Optimizer | None, needed: Collection[int]) -> None:
        """Update the newest version, and let go of all others that aren't `needed`."""
        needed = needed if self.stash else ()
        if self.number in needed:
            for parameter in self.parameters.values():
                parameter.data = parameter.data.clone()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.number += 1
        self.held = {version: kept for version, kept in self.held.items() if version in needed}
        self.held[self.number] = self._data()

    def _data(self) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in self.parameters.items()}


def give(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    """Let a parameter have the gradient of a batch, by hooks that the backward to a leaf skips."""
    hooks: Any = parameter._backward_hooks or {}, parameter._post_accumulate_grad_hooks or {}
    for hook in hooks[0].values() if gradient is not None else ():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    parameter.grad = gradient
    for hook in hooks[1].values() if gradient is not None else ():
        hook(parameter)


@contextmanager
def with_weights(module: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """Let a module have these tensors, and again when a backward recomputes.

    A tensor of several names is given back, unlike by `torch.func.functional_call`.
    """
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {id(named[name]): tensor for name, tensor in weights.items()}
    held: list[tuple[Any, str, Tensor]] = [
        (own, name, tensor)
        for part in module.modules()
        for own in (part._parameters, part._buffers)
        for name, tensor in own.items()
        if tensor is not None and id(tensor) in given
    ]
    for own, name, tensor in held:
        own[name] = given[id(tensor)]
    try:
        with entered(lambda: partial(with_weights, module, weights)):
            yield
    finally:
        for own, name, tensor in held:
            own[name] = tensor
