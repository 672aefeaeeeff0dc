"""Three corrections of old gradients, through the hook `alkit.delayed.stage.Correction`.

Module k's forward of batch m saw v = max(0, m - d) updates, d = K - 1 - k; its gradient g is the
update m + 1. w^(j) are the weights after j updates.

    correction    what is another
    predict       forward and backward at w^(v) - r u: where the optimiser is heading; u is SGD's
                  momentum, or Adam's m / (sqrt(v) + eps), after update v, and r the sum of the
                  rates of updates v + 1 to m
    gap_aware     g / (1 + |w^(m) - w^(v)| / C), C the mean size of a step's elements so far
    pipemare      the first T updates at rate / d^(1 - m / T); and, with no version kept, the
                  backward's weights are w^(m) - (m - v) x, x a moving average of the steps

Nesterov's correction is an optimiser alone: `nadam`, at PipeDream's versions as they are.

Sources: weight prediction, Chen et al. 2018 (SpecTrain), the same weights in the backward here;
gap-aware, Barkai et al. 2019; PipeMare, Yang et al. 2021; Nesterov, Ajanthan et al. 2025.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from alkit.delayed.stage import Correction, Leaves, Optimizer, Parameters, Weights

ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam)


def nadam(parameters: Any, lr: float = 3e-4) -> torch.optim.Optimizer:
    """Make NAdam as PipeDream's gradients are corrected with it (Ajanthan et al. 2025)."""
    return torch.optim.NAdam(
        parameters,
        lr=lr,
        betas=(0.99, 0.999),
        weight_decay=0.01,
        momentum_decay=0.004,
        decoupled_weight_decay=True,
    )


STASHED = ("pipedream", "ddg", "ddg_barrier")  # methods that keep old versions, and go on with them


def _check(correction: Any, method: str, methods: tuple[str, ...] = STASHED) -> None:
    if method not in methods:
        kind = type(correction).__name__
        raise ValueError(f"correction {kind} with {method}: it is for {', '.join(methods)}")


@dataclass(frozen=True)
class Predict:
    """Predict the weights that a gradient will be applied to, by the optimiser's direction."""

    rate: Callable[[int], float] | None = None  # factor of the first rate, by the batch's number

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
        return _Predicting(self.rate)


class _Predicting(Correction):
    def __init__(self, rate: Callable[[int], float] | None) -> None:
        self.rate = rate

    def leaves(self, leaves: Leaves, optimizer: Optimizer, missed: range) -> Leaves:
        factor = len(missed) if self.rate is None else sum(map(self.rate, missed))
        if optimizer is None or not factor:
            return leaves
        first = "lr" if self.rate is None else "initial_lr"
        moves = _moves(optimizer, [group[first] * factor for group in optimizer.param_groups])
        return {name: _moved(leaf, moves) for name, leaf in leaves.items()}


def _moves(optimizer: torch.optim.Optimizer, rates: list[float]) -> dict[int, Tensor]:
    """Return how far parameters will move, by the address of their storage; some are not known."""
    moves = {}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if not state:
                continue  # before its first update nothing is known
            buffer = state.get("momentum_buffer")
            step = _adam(state, group) if buffer is None else buffer
            moves[parameter.data_ptr()] = rate * step
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


@dataclass(frozen=True)
class PipeMare:
    """Smaller rates at first, and a backward at what the forward's weights are taken to be.

    Attributes:
        warmup: T, updates after which all modules have the full rate; 0 for none.
        decay: D, what is left of a step in the moving average after a module's delay; 0 for no
            correction of the weights.
    """

    warmup: int = 100
    decay: float = 0.25

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 0 <= self.decay < 1:
            raise ValueError(
                f"warmup {self.warmup} and decay {self.decay}: give updates from 0 on, and a share"
                " from 0 to below 1"
            )

    def __call__(self, method: str, delay: int, optimizer: Optimizer) -> Correction:
        """Return a module's state: of methods that keep no versions, unless rates are all."""
        _check(self, method, ("pipedream_inplace",) if self.decay else STASHED)
        return _Averaging(self, delay, optimizer)


class _Averaging(Correction):
    def __init__(self, settings: PipeMare, delay: int, optimizer: Optimizer) -> None:
        self.settings, self.delay = settings, delay
        self.groups = [] if optimizer is None else optimizer.param_groups
        self.average: dict[str, Tensor] = {}
        self.keeps = settings.decay ** (1 / delay) if delay else 0.0

    @contextmanager
    def backward(self, weights: Weights, late: int) -> Iterator[None]:
        if not late or not self.average or not self.settings.decay:
            yield
            return
        before = {name: own.clone() for name, own in weights.items()}
        with torch.no_grad():
            for name, own in weights.items():
                own.sub_(late * self.average[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, own in weights.items():
                    own.copy_(before[name])

    def factor(self, batch: int) -> float:
        if not self.settings.warmup:
            return 1.0
        power = 1 - min(batch / self.settings.warmup, 1.0)
        return max(1, self.delay) ** -power

    @contextmanager
    def step(self, parameters: Parameters, then: Weights, batch: int) -> Iterator[None]:
        before = {name: own.detach().clone() for name, own in parameters.items()}
        rates, factor = [group["lr"] for group in self.groups], self.factor(batch)
        for group in self.groups:
            group["lr"] *= factor
        yield
        for group, rate in zip(self.groups, rates, strict=True):
            if group["lr"] == rate * factor:  # no scheduler has moved it meanwhile
                group["lr"] = rate
        for name, own in parameters.items():
            step = own.detach() - before[name]
            old = self.average.get(name, torch.zeros_like(step))
            self.average[name] = self.keeps * old + (1 - self.keeps) * step
