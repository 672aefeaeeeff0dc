"""What can be cut and averaged, before anything is trained."""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.engine.modes import evaluating


def check_network(units: Sequence[nn.Module], example: Tensor, cuts: Iterable[int]) -> None:
    """Let a copy of the units run one after the other.

    Args:
        example: one sample's input (1, ...), as the network takes it.
        cuts: of devices, or all that may be chosen.
    Raises:
        ValueError: units that can't be run one after the other, averaged or cut there.
    """
    cuts, x = sorted(set(cuts)), example
    _check_units(units, cuts)
    for at, unit in enumerate(units):
        alone = copy.deepcopy(unit).cpu()
        taken = f"{tuple(x.shape)} of {x.dtype}"
        with evaluating(alone), torch.no_grad():
            try:
                x = alone(x)
            except RuntimeError as error:
                raise ValueError(f"unit {at} does not take {taken}: {error}") from error
        if not isinstance(x, Tensor):
            raise ValueError(
                f"unit {at} gives a {type(x).__name__}: split learning sends one tensor from head"
                " to tail, so join the units that hand on more"
            )
        if at + 1 in cuts and at + 1 < len(units) and not x.is_floating_point():
            raise ValueError(
                f"unit {at} gives {x.dtype}, through which no gradient comes back: cut after a unit"
                " that gives floats, or leave all units on one side"
            )


def _check_units(units: Sequence[nn.Module], cuts: Sequence[int]) -> None:
    """Refuse what can't be averaged, and what both sides would train on their own."""
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
