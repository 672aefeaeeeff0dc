"""Two corrections of old gradients, through the hook `alkit.delayed.stage.Correction`.

Module k's forward of batch m saw v = max(0, m - d) updates, d = K - 1 - k; its gradient g is the
update m + 1. w^(j) are the weights after j updates.

    correction    what is another
    predict       forward and backward at w^(v) + (m - v) (w^(v) - w^(v - 1)): the last step,
                  repeated. At one rate that is SGD's momentum, or Adam's m / (sqrt(v) + eps)
    gap_aware     g / q, weight decay too, q = 1 + |w^(m) - w^(v)| / C an element: C is the highest
                  rate times the root of a running mean, of the squares of its steps a rate

Sources: Chen et al. 2018 (SpecTrain; the backward has its weights, too); Barkai et al. 2019.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from alkit.delayed.stage import Correction, Leaves, Optimizer, Parameters, Weights

FORGETS = 0.999
STASHED = ("pipedream", "ddg", "ddg_barrier")  # methods that keep old versions, and go on with them


def _check(kind: str, method: str) -> None:
    if method not in STASHED:
        raise ValueError(f"correction {kind} with {method}: it is for {', '.join(STASHED)}")


@dataclass(frozen=True)
class Predict:
    """Predict the weights that a gradient will be applied to: the last step, repeated."""

    def __call__(self, method: str, delay: int, optimizer: Optimizer) -> Correction:
        """Return a module's state."""
        _check(type(self).__name__, method)
        return _Predicting()


class _Predicting(Correction):
    def __init__(self) -> None:
        self.taken = dict[str, Tensor]()  # by the last step

    def leaves(self, leaves: Leaves, optimizer: Optimizer, missed: range) -> Leaves:
        ahead = {name: len(missed) * step for name, step in self.taken.items()} if missed else {}
        moved = {name: leaves[name].detach() + step for name, step in ahead.items()}
        return {
            **leaves,
            **{n: w.requires_grad_(leaves[n].requires_grad) for n, w in moved.items()},
        }

    @contextmanager
    def step(self, parameters: Parameters, then: Weights, batch: int) -> Iterator[None]:
        before = {name: own.detach().clone() for name, own in parameters.items()}
        yield
        self.taken = {name: own.detach() - before[name] for name, own in parameters.items()}


@dataclass(frozen=True)
class GapAware:
    """Make a gradient smaller, element by element, the further its weights have moved."""

    def __call__(self, method: str, delay: int, optimizer: Optimizer) -> Correction:
        """Return a module's state."""
        _check(type(self).__name__, method)
        return _Gaps(optimizer)


class _Gaps(Correction):
    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.steps, self.rate = optimizer, 0, 0.0
        self.squares = dict[str, Tensor]()  # running means of squared steps a rate

    @contextmanager
    def step(self, parameters: Parameters, then: Weights, batch: int) -> Iterator[None]:
        groups = self.optimizer.param_groups if self.optimizer else []
        of = {id(own): group for group in groups for own in group["params"]}
        before = {name: own.detach().clone() for name, own in parameters.items()}
        apart = {}  # from the gradient, as AdamW's: the part of its decay that is too much
        for name, own in parameters.items():
            if own.grad is not None and name in self.squares:
                group, mean = of[id(own)], self.squares[name] / (1 - FORGETS**self.steps)
                penalty = 1 + (before[name] - then[name]).abs() / (self.rate * mean.sqrt() + 1e-8)
                more = group.get("weight_decay", 0.0) * before[name] * (1 - 1 / penalty)
                own.grad = own.grad / penalty
                if group.get("decoupled_weight_decay"):
                    apart[name] = group["lr"] * more
                else:
                    own.grad -= more
        yield
        self.steps += 1
        for name, own in parameters.items():
            own.data += apart.get(name, 0.0)
            self.rate = max(self.rate, rate := of[id(own)]["lr"])
            square = ((before[name] - own.detach()) / rate).square() if rate else 0.0
            self.squares[name] = FORGETS * self.squares.get(name, 0.0) + (1 - FORGETS) * square
