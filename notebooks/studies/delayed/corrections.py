"""Two corrections of old gradients, through the hook `alkit.delayed.stage.Correction`.

Module k's forward of batch m saw v = max(0, m - d) updates, d = K - 1 - k; its gradient g is the
update m + 1. w^(j) are the weights after j updates.

    correction    what is another
    predict       forward and backward at w^(v) - r u: where the optimiser is heading; u is SGD's
                  momentum, or Adam's m / (sqrt(v) + eps), after update v, and r the rate times the
                  updates v + 1 to m
    gap_aware     g / (1 + |w^(m) - w^(v)| / C), C the mean size of a step's elements
                  so far: one number a tensor, where the publication has one an element

Sources: weight prediction, Chen et al. 2018 (SpecTrain), the same weights in the backward here;
gap-aware, Barkai et al. 2019.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from alkit.delayed.stage import Correction, Leaves, Optimizer, Parameters, Weights

ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam)


STASHED = ("pipedream", "ddg", "ddg_barrier")  # methods that keep old versions, and go on with them


def _check(correction: Any, method: str) -> None:
    if method not in STASHED:
        kind = type(correction).__name__
        raise ValueError(f"correction {kind} with {method}: it is for {', '.join(STASHED)}")


@dataclass(frozen=True)
class Predict:
    """Predict the weights that a gradient will be applied to, by the optimiser's direction."""

    def __call__(self, method: str, delay: int, optimizer: Optimizer) -> Correction:
        """Return a module's state; a ValueError of an optimiser whose next step is not known."""
        _check(self, method)
        for group in () if optimizer is None else optimizer.param_groups:
            momentum = isinstance(optimizer, torch.optim.SGD) and group["momentum"]
            if not momentum and not isinstance(optimizer, ADAMS):
                kind = type(optimizer).__name__
                raise ValueError(
                    f"{kind} says nothing of its next step: give SGD with momentum=, Adam, AdamW or"
                    " NAdam"
                )
        return _Predicting()


class _Predicting(Correction):
    def leaves(self, leaves: Leaves, optimizer: Optimizer, missed: range) -> Leaves:
        if optimizer is None or not len(missed):
            return leaves
        moves = _moves(optimizer, len(missed))
        return {name: _moved(leaf, moves) for name, leaf in leaves.items()}


def _moves(optimizer: torch.optim.Optimizer, steps: int) -> dict[int, Tensor]:
    """Return how far parameters will move, by the address of their storage; some are not known."""
    moves = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if not state:
                continue  # before its first update nothing is known
            buffer = state.get("momentum_buffer")
            step = _adam(state, group) if buffer is None else buffer
            moves[parameter.data_ptr()] = steps * group["lr"] * step
    return moves


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    beta1, beta2 = group["betas"]
    count = float(state["step"])
    mean = state["exp_avg"] / (1 - beta1**count)
    return mean / ((state["exp_avg_sq"] / (1 - beta2**count)).sqrt() + group["eps"])


def _moved(leaf: Tensor, moves: Mapping[int, Tensor]) -> Tensor:
    if (move := moves.get(leaf.data_ptr())) is None:
        return leaf
    return (leaf.detach() - move).requires_grad_(leaf.requires_grad)


@dataclass(frozen=True)
class GapAware:
    """Make a gradient smaller, element by element, the further its weights have moved."""

    def __call__(self, method: str, delay: int, optimizer: Optimizer) -> Correction:
        """Return a module's state."""
        _check(self, method)
        return _Gaps()


class _Gaps(Correction):
    def __init__(self) -> None:
        self.steps, self.sizes = 0, dict[str, Tensor]()  # summed mean sizes of a step's elements

    @contextmanager
    def step(self, parameters: Parameters, then: Weights, batch: int) -> Iterator[None]:
        before = {name: own.detach().clone() for name, own in parameters.items()}
        for name, own in parameters.items():
            if own.grad is not None and self.steps and float(self.sizes[name]):
                gap = (before[name] - then[name]).abs()
                own.grad = own.grad / (1 + gap / (self.sizes[name] / self.steps))
        yield
        self.steps += 1
        for name, own in parameters.items():
            size = (own.detach() - before[name]).abs().mean()
            self.sizes[name] = self.sizes.get(name, torch.zeros_like(size)) + size
