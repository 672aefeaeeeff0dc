"""Placements: the two usual ones, and the best of all against brute force."""

from itertools import product

import pytest

from studies import placement
from studies.placement import best, contiguous, round_robin

COSTS = [3.0, 1.0, 4.0, 1.0, 5.0, 2.0, 2.0]


def _load(costs):
    """The busiest device, and a little for every hop from one device to another."""

    def step_s(place):
        devices = range(max(place) + 1)
        loads = [sum(c for c, own in zip(costs, place, strict=True) if own == d) for d in devices]
        hops = sum(a != b for a, b in zip(place, place[1:], strict=False))
        return max(loads) + 0.01 * hops

    return step_s


def test_the_usual_ones():
    assert contiguous(5, 2) == (0, 0, 0, 1, 1)
    assert contiguous(2, 4) == (0, 2)
    assert round_robin(5, 2) == (0, 1, 0, 1, 0)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_the_best_of_all(devices):
    step_s = _load(COSTS)
    found, seconds = best(step_s, len(COSTS), devices)
    assert seconds == step_s(found)
    assert seconds == min(step_s(p) for p in product(range(devices), repeat=len(COSTS)))


def test_a_search_improves_on_the_usual_ones(monkeypatch):
    monkeypatch.setattr(placement, "EVERY", 1)
    step_s = _load(COSTS)
    _, seconds = best(step_s, len(COSTS), 3)
    usual = [step_s(contiguous(len(COSTS), 3)), step_s(round_robin(len(COSTS), 3))]
    assert seconds < min(usual)
