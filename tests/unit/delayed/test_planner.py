"""Cuts against brute force; memory against hand counts."""

import random
from itertools import combinations, product

import pytest

from alkit.delayed import METHODS, even_cuts
from alkit.delayed.memory import memory
from alkit.delayed.planner import GroupCosts, best_cuts, seconds_a_batch
from alkit.delayed.schedules import SHARED
from alkit.schedule.costs import BlockCost
from studies.delayed.closed_times import cycle_s

PLANNED = [name for name, method in METHODS.items() if not method.accumulates]


def _costs(blocks, seed):
    draw = random.Random(seed)
    return [
        BlockCost(
            draw.random(), 2 * draw.random(), 0.1, *(draw.randrange(1, 100) for _ in range(3))
        )
        for _ in range(blocks)
    ]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in SHARED])
@pytest.mark.parametrize("modules", [1, 2, 3, 4, 7])
def test_best_cuts_are_the_best(method, modules):
    for seed, limits in product(range(4), ({}, {"bandwidth": 80.0}, {"memory": 900.0})):
        costs = _costs(8, seed)
        plan = GroupCosts(method, costs, modules, **limits)
        least = min(map(plan.seconds, combinations(range(1, 8), modules - 1)))
        if least == float("inf"):
            with pytest.raises(ValueError, match="fits no cut"):
                best_cuts(method, costs, modules, **limits)
            continue
        cuts = best_cuts(method, costs, modules, **limits)
        assert len(cuts) == modules - 1
        if not limits and method in PLANNED:
            assert seconds_a_batch(method, costs, cuts) == pytest.approx(least)


@pytest.mark.parametrize("method", PLANNED)
@pytest.mark.parametrize("modules", [1, 2, 3, 6])
def test_equal_blocks_take_what_the_closed_forms_say(method, modules):
    costs = [BlockCost(1.0, 2.0, 0.0)] * 6
    f, b = 6 / modules, 12 / modules
    found = seconds_a_batch(method, costs, even_cuts(6, modules))
    assert found == pytest.approx(cycle_s(method, modules, f, b))


def test_little_memory_pushes_cuts_to_the_front():
    costs = [BlockCost(1.0, 2.0, 0.0, 0, 100, 0)] * 8
    assert best_cuts("pipedream", costs, 2) == [4]
    assert best_cuts("pipedream", costs, 2, memory=700) == [3]
    assert best_cuts("fr", costs, 2, memory=700) == [4]


def test_memory_by_hand():
    """Three modules of two blocks: 10 bytes of weights, 100 saved and 7 handed on a block."""
    costs = [BlockCost(1.0, 2.0, 0.0, 7, 100, 10)] * 6
    rows = {name: memory(name, costs, [2, 4], 50) for name in (*PLANNED, "gpipe", "1f1b")}
    assert rows["pipedream"]["activations"].tolist() == [600, 400, 200]
    assert rows["pipedream"]["weights"].tolist() == [60, 40, 20]
    assert rows["pipedream_sync"]["weights"].tolist() == [60, 60, 60]
    assert rows["pipedream_inplace"]["weights"].tolist() == [20, 20, 20]
    assert rows["fr"]["activations"].tolist() == [200, 200, 200]
    assert rows["fr"]["inputs"].tolist() == [150, 14, 7]
    assert rows["seq"]["total"].tolist() == [260] * 3
    assert memory("1f1b", costs, [2, 4], 50, micro=4)["activations"].tolist() == [150, 100, 50]
    halves = memory("zero_bubble", costs, [2, 4], 50, micro=4)
    assert halves["activations"].tolist() == [150] * 3
    again = memory("gpipe", costs, [2, 4], 52, micro=4, recompute=True)
    assert again["activations"].tolist() == [50] * 3
    assert again["inputs"].tolist() == [52, 4, 4]  # four of 13, of 7 // 4
    assert memory("2bw", costs, [2, 4], 50, micro=4)["weights"].tolist() == [40] * 3


def test_bad_requests():
    costs = _costs(3, 0)
    with pytest.raises(ValueError, match="4 modules for 3 blocks"):
        best_cuts("ddg", costs, 4)
    with pytest.raises(ValueError, match="works in micro-batches"):
        seconds_a_batch("gpipe", costs, [1])
