"""Which is faster here: a part's compiled step, or the part as it is."""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from alkit.engine.random import noise_of

if TYPE_CHECKING:
    from alkit.engine.native import Native

__all__ = ["raced"]

ROUNDS = 7


def raced(twin: "Native", inputs: Any) -> tuple[float, float]:
    """Run both ways in turn.

    Args:
        twin: a copy, which this trains: what it was copied from sees nothing of it.
    Returns:
        Median seconds of a step, compiled and as it is; zeros if it can't be compiled.
    """
    optimizers = [each for each in twin.optimizers if each is not None]

    def compiled() -> None:
        found = twin(("race",), *inputs)
        if found is not None and not twin.steps_inside:
            for parameter, gradient in found[2]:
                parameter.grad = gradient
            for optimizer in optimizers:
                optimizer.step()

    def as_it_is() -> None:
        with torch.enable_grad(), noise_of(twin.losses, "race"):
            losses, _ = twin.losses(*inputs)
        twin.losses.zero_grad(set_to_none=True)
        torch.autograd.backward([loss for loss in losses if loss.requires_grad])
        for optimizer in optimizers:
            optimizer.step()

    compiled()  # compiles
    if twin.why:
        return 0.0, 0.0
    seconds = [(_seconds(compiled), _seconds(as_it_is)) for _ in range(ROUNDS)]
    first, second = zip(*seconds[1:], strict=True)
    return statistics.median(first), statistics.median(second)


def _seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
