"""Which device holds which layer, when there are more layers than devices.

A placement is a tuple, the device of each layer: contiguous (0, 0, 1, 1), round robin (0, 1, 0, 1),
or any other; `best` looks for the one with the shortest step.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

__all__ = ["Placement", "best", "contiguous", "round_robin"]

Placement = tuple[int, ...]
EVERY = 5_000


def contiguous(layers: int, devices: int) -> Placement:
    """Give every device neighbouring layers, as equal in number as can be."""
    _check(layers, devices)
    return tuple(layer * devices // layers for layer in range(layers))


def round_robin(layers: int, devices: int) -> Placement:
    """Deal the layers out like cards, as the published scale study did."""
    _check(layers, devices)
    return tuple(layer % devices for layer in range(layers))


def best(
    step_s: Callable[[Placement], float], layers: int, devices: int, every: int = EVERY
) -> tuple[Placement, float]:
    """Return the placement with the shortest step, and that step.

    Equal devices need no names, so (0, 1, 1) stands for (1, 0, 0) too. If there are too many
    placements to try all, the better of `contiguous` and `round_robin` is improved by moving or
    swapping layers until nothing helps: good, but not surely the best.

    Args:
        step_s: of a placement; simulated, say.
        every: so many placements are all tried; of more, neighbours.
    """
    _check(layers, devices)
    if devices**layers <= every:
        return min(((p, step_s(p)) for p in _every(layers, devices)), key=lambda one: one[1])
    starts = (contiguous(layers, devices), round_robin(layers, devices))
    found = min(((p, step_s(p)) for p in starts), key=lambda one: one[1])
    while True:
        near = min(((p, step_s(p)) for p in _near(found[0], devices)), key=lambda one: one[1])
        if near[1] >= found[1]:
            return found
        found = near


def _every(layers: int, devices: int) -> Iterator[Placement]:
    """Yield all placements in which device k + 1 is first used after device k."""

    def grow(placement: Placement) -> Iterator[Placement]:
        if len(placement) == layers:
            yield placement
            return
        for device in range(min(devices, max(placement, default=-1) + 2)):
            yield from grow((*placement, device))

    return grow(())


def _near(placement: Placement, devices: int) -> Iterator[Placement]:
    """Yield the placements that differ by one layer moved, or two swapped."""
    for layer, device in enumerate(placement):
        for other in range(devices):
            if other != device:
                yield (*placement[:layer], other, *placement[layer + 1 :])
    for one, two in combinations(range(len(placement)), 2):
        if placement[one] != placement[two]:
            swapped = list(placement)
            swapped[one], swapped[two] = placement[two], placement[one]
            yield tuple(swapped)


def _check(layers: int, devices: int) -> None:
    if layers < 1 or devices < 1:
        raise ValueError(f"{layers} layers on {devices} devices: give 1 or more of each")
