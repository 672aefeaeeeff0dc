"""The hook for what may be done about old gradients; notebook 36 builds three such corrections.

Module k's forward of batch m saw v = max(0, m - d) updates, d = K - 1 - k; its gradient is the
update m + 1.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from alkit.delayed.methods import Method

Weights = Mapping[str, Tensor]


class State:
    """A module's correction of old gradients: none, except for what a subclass overrides."""

    def leaves(
        self,
        leaves: dict[str, Tensor],
        optimizer: torch.optim.Optimizer | None,
        factors: Iterable[float],
    ) -> dict[str, Tensor]:
        """Return the weights of a forward; `factors` are of the rates of updates that it lacks."""
        return leaves

    def backward(self, weights: Weights, late: int) -> AbstractContextManager[None]:
        """Have the backward's weights in the module's own storage; it lacks `late` updates."""
        return nullcontext()

    def factor(self, update: int) -> float:
        """Return the factor of the rate of an update, counted over all epochs."""
        return 1.0

    def step(
        self, parameters: Mapping[str, nn.Parameter], then: Weights
    ) -> AbstractContextManager[None]:
        """Surround a step: may change the gradients, which were found at the weights `then`."""
        return nullcontext()


class Correction(Protocol):
    """Makes a state for every module, with its delay in a full pipeline: `of(delay, optimizer)`.

    Attributes:
        methods: names of the methods whose old gradients it corrects.
    """

    @property
    def methods(self) -> Collection[str]: ...

    def of(self, delay: int, optimizer: torch.optim.Optimizer | None) -> State: ...


def check_correction(correction: Correction | None, method: Method) -> None:
    """Refuse a correction that is not for this method.

    Raises:
        ValueError: names the methods that it is for.
    """
    if correction is not None and method.name not in correction.methods:
        kind, names = type(correction).__name__, ", ".join(correction.methods)
        raise ValueError(f"correction {kind} with {method.name}: it is for {names}")
