"""The hook for what may be done about old gradients; notebook 36 builds three such corrections.

Module k's forward of batch m saw v = max(0, m - d) updates, d = K - 1 - k; its gradient is the
update m + 1.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from alkit.delayed.methods import Method

Weights = Mapping[str, Tensor]


class State:
    """A module's correction of old gradients: none, except for what a subclass overrides."""

    def leaves(
        self, leaves: dict[str, Tensor], optimizer: torch.optim.Optimizer | None, rates: list[float]
    ) -> dict[str, Tensor]:
        """Return the weights of a forward.

        Args:
            rates: for each of the optimiser's groups, the sum over the updates that are missing.
        """
        return leaves

    @contextmanager
    def backward(self, weights: Weights, late: int) -> Iterator[None]:
        """Have the backward's weights in the module's own storage."""
        yield

    def gradient(self, name: str, own: Tensor, now: Tensor, then: Tensor) -> Tensor:
        """Return the gradient to be applied to `now`, which was found at `then`."""
        return own

    def factor(self, update: int) -> float:
        """Return the factor of the rate of an update, counted over all epochs."""
        return 1.0

    def stepped(self, before: Weights, after: Weights) -> None:
        """Take note of a step."""


class Correction(Protocol):
    """Makes a state for every module.

    Attributes:
        methods: names of the methods whose old gradients it corrects.
    """

    @property
    def methods(self) -> Collection[str]:
        """Names of the methods whose old gradients it corrects."""

    def of(self, delay: int, optimizer: torch.optim.Optimizer | None) -> State:
        """Return a module's state; its forwards lack `delay` updates once the pipeline is full."""


def check_correction(correction: Correction | None, method: Method) -> None:
    """Refuse a correction that is not for this method.

    Raises:
        ValueError: names the methods that it is for.
    """
    if correction is not None and method.name not in correction.methods:
        kind, names = type(correction).__name__, ", ".join(correction.methods)
        raise ValueError(f"correction {kind} with {method.name}: it is for {names}")
