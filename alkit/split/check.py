"""Networks that can be cut and averaged."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.engine.modes import evaluating
from alkit.split.halves import Tail, state_of

DIVERGED = "is not finite: the training has diverged, lower lr"


class Check:
    """What is known of a network before it is cut.

    Args:
        units: the whole network, which stays as it is.
        example: one sample's input (1, ...), as the network takes it.
        cuts: of devices, or all that a planner may choose.
    Raises:
        ValueError: units that can't be run one after the other, averaged or cut there.
    """

    def __init__(
        self, units: Sequence[nn.Module], example: Tensor, cuts: Iterable[int] = ()
    ) -> None:
        cuts = sorted(set(cuts))
        check_units(units, cuts)
        self.units, self.example, x = len(units), example, example
        self.features = [(x.shape[1:], x.dtype)]  # at each cut, of a sample
        self.network = [unit.cpu() for unit in copy.deepcopy(list(units))]
        for at, unit in enumerate(self.network):
            taken = f"{tuple(x.shape)} of {x.dtype}"
            with evaluating(unit), torch.no_grad():
                try:
                    x = unit(x)
                except RuntimeError as error:
                    raise ValueError(f"unit {at} does not take {taken}: {error}") from error
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"unit {at} gives a {type(x).__name__}: split learning sends one tensor"
                    " from head to tail, so join the units that hand on more"
                )
            self.features.append((x.shape[1:], x.dtype))
        for cut in cuts:
            if 0 < cut < self.units and not (kind := self.features[cut][1]).is_floating_point:
                raise ValueError(
                    f"unit {cut - 1} gives {kind}, through which no gradient comes back: cut after"
                    " a unit that gives floats, or leave all units on one side"
                )
        self.classes = x.shape[-1]
        self.state = {name: (own.shape, own.dtype) for name, own in state_of(units).items()}

    def runs(self, state: Mapping[str, Tensor]) -> bool:
        """Say whether a network with this state gives finite scores."""
        network = nn.Sequential(*self.network)
        network.load_state_dict(dict(state))
        with evaluating(network), torch.no_grad():
            return bool(network(self.example).isfinite().all())


def check_units(units: Sequence[nn.Module], cuts: Sequence[int]) -> None:
    """Refuse what can't be averaged, and what both sides would train on their own.

    Raises:
        ValueError: names the first unit that keeps something else than real tensors, or what is
            shared.
    """
    for at, unit in enumerate(units):
        for name, own in unit.state_dict().items():
            if not isinstance(own, Tensor) or own.is_complex():
                raise ValueError(
                    f"unit {at} keeps {name}, {given(own)}, and what devices have is averaged: keep"
                    " real tensors alone, as parameters or buffers"
                )
    for cut in cuts:
        sides = [
            {id(own): name for unit in side for name, own in unit.named_parameters()}
            for side in (units[:cut], units[cut:])
        ]
        if both := sides[0].keys() & sides[1].keys():
            raise ValueError(
                f"head and tail would share a parameter ({sides[0][both.pop()]}), each with a copy:"
                " untie it, or cut so that both uses are on one side"
            )


def unit_of(name: str) -> int:
    """Return the unit that a tensor of a network's state belongs to."""
    return int(name.partition(".")[0])


def sound(tail: Tail, loss: float) -> None:
    """See that loss, gradients and buffers are finite.

    Raises:
        FloatingPointError: something is not, and would be in all weights.
    """
    found = [own.grad for own in tail.units.parameters() if own.grad is not None]
    norms = (torch.linalg.vector_norm(own) for own in found)
    kept = tail.units.named_buffers()
    same = math.isfinite(loss) and all(_finite(own, tail.buffers.get(name)) for name, own in kept)
    if not same or not all(bool(norm.isfinite()) for norm in norms):
        raise FloatingPointError(f"what the features lead to {DIVERGED}")


def _finite(own: Tensor, before: Tensor | None) -> bool:
    """Whether all of a tensor is finite, or infinite as it was before, as masks are."""
    fine = own.isfinite()
    return bool((fine if before is None else fine | (own == before)).all())
