"""How networks of several devices become one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def average(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return one state of complete networks' states, weighted (FedAvg, McMahan et al. 2017).

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
        value = _mean([state[name].double() for state in states], weights)
        made[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return made


def _mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = sum(weights)
    parts = (value * (weight / total) for value, weight in zip(values, weights, strict=True))
    return sum(parts, torch.zeros((), dtype=torch.float64))
