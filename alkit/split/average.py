"""How networks of several devices become one, and which of them stand out."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

State = Mapping[str, Tensor]
DIVERGED = "is not finite: nonsense, or the training has diverged, then lower lr"
TRIMMED = 0.2  # of the values of an entry, at each end


def average(
    states: Sequence[State], weights: Sequence[float], how: str = "mean"
) -> dict[str, Tensor]:
    """Return one state of complete networks' states.

    "mean" is weighted (FedAvg, McMahan et al. 2017); "median" and "trimmed" (a fifth of the values
    left out at each end) are taken entry by entry, each device counting once (Yin et al. 2018).
    Whole numbers, such as BatchNorm's counters, are rounded; sums are in float64.

    Raises:
        ValueError: no states, other weights than states, or weights that don't add up to more
            than 0.
    """
    if not states or len(states) != len(weights) or sum(weights) <= 0 or min(weights) < 0:
        raise ValueError(f"{len(states)} states with the weights {list(weights)}: give one each")
    if len(states) == 1:
        return {name: tensor.clone() for name, tensor in states[0].items()}
    made = {}
    for name, first in states[0].items():
        value = AGGREGATES[how]([state[name].double() for state in states], weights)
        made[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return made


def _mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = sum(weights)
    parts = (value * (weight / total) for value, weight in zip(values, weights, strict=True))
    return sum(parts, torch.zeros((), dtype=torch.float64))


def _median(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    ordered, last = torch.stack([*values]).sort(0).values, len(values) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2


def _trimmed(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    count = int(TRIMMED * len(values))
    return torch.stack([*values]).sort(0).values[count : len(values) - count].mean(0)


AGGREGATES: dict[str, Callable[[Sequence[Tensor], Sequence[float]], Tensor]] = {
    "mean": _mean,
    "median": _median,
    "trimmed": _trimmed,
}


def distance(before: State, after: State) -> float:
    """Return the norm of what has changed, of the tensors that both have, but for infinities."""
    changes = (after[name].double() - before[name].double() for name in after if name in before)
    norms = [torch.linalg.vector_norm(change[change.isfinite()]) for change in changes]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def agreed(
    before: State,
    states: Mapping[int, State],
    samples: Mapping[int, int],
    runs: Callable[[dict[str, Tensor]], bool],
    *,
    how: str = "mean",
    most: float = 0.0,
) -> tuple[dict[str, Tensor] | None, dict[int, str]]:
    """Return the average of those devices that do not stand out, and why others do.

    A device stands out whose change is more than `most` times the median of the others' and the
    weights themselves: who sends what has hardly changed makes no other one stand out. If the
    average gives scores that are not finite, the one with the largest change has done it.

    Args:
        before: what all of them began with.
        runs: whether a network with a state gives finite scores.
    Returns:
        None if nobody is left.
    """
    changes = {at: distance(before, state) for at, state in states.items()}
    size, blamed = distance({name: 0 * own for name, own in before.items()}, before), {}
    for at, own in changes.items():
        others = [change for other, change in changes.items() if other != at]
        if most and others and own > most * max(size, median(others)):
            blamed[at] = (
                f"its weights have changed by {own:.3g}, the others' by {median(others):.3g}"
            )
    while left := [at for at in states if at not in blamed]:
        state = average([states[at] for at in left], [samples[at] for at in left], how)
        if runs(state):
            return state, blamed
        blamed[max(left, key=lambda at: changes[at])] = f"the network with its weights {DIVERGED}"
    return None, blamed
