"""How networks of several devices become one."""

from collections.abc import Mapping, Sequence

from torch import Tensor


def average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return one state of complete networks' states, weighted (FedAvg, McMahan et al. 2017).

    Whole numbers, such as BatchNorm's counters, are rounded; sums are in float64.
    """
    if len(states) == 1:
        return {name: tensor.clone() for name, tensor in states[0].items()}
    made, total = dict[str, Tensor](), sum(weights)
    for name, first in states[0].items():
        pairs = zip(states, weights, strict=True)
        value = sum(own[name].double() * (weight / total) for own, weight in pairs)
        assert isinstance(value, Tensor)
        made[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return made
