"""Balanced cuts against brute force."""

import random
from itertools import combinations

import pytest

from alkit.schedule.costs import BlockCost
from alkit.schedule.cuts import balanced_cuts
from studies.delayed.straight_cuts import ADAM, straight_cuts


def _worst(costs, cuts):
    bounds = [0, *cuts, len(costs)]
    return max(sum(costs[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))


@pytest.mark.parametrize("seed", range(40))
def test_against_brute_force(seed):
    rng = random.Random(seed)
    costs = [rng.choice([0.0, rng.random(), 5 * rng.random()]) for _ in range(rng.randint(1, 9))]
    for groups in range(1, len(costs) + 1):
        best = min(_worst(costs, c) for c in combinations(range(1, len(costs)), groups - 1))
        cuts = balanced_cuts(costs, groups)
        assert len(cuts) == groups - 1
        assert cuts == sorted(set(cuts))
        assert _worst(costs, cuts) == pytest.approx(best)


def _random_costs(rng, blocks):
    return [
        BlockCost(rng.choice([1, 2, 3]), rng.choice([0, 2]), 1, rng.choice([1, 2, 4]),
                  rng.choice([0, 5]), rng.choice([0, 1, 2]))
        for _ in range(blocks)
    ]  # fmt: skip


def _judged(costs, cuts, bandwidth, memory, ways):
    """(step, bytes moved, peak), or None if a worker's memory does not do."""
    bounds = [0, *cuts, len(costs)]
    groups = [costs[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    peak = max(sum(ADAM * c.parameter_bytes + c.saved_bytes for c in group) for group in groups)
    if memory is not None and peak > memory:
        return None
    links = [ways * costs[cut - 1].output_bytes for cut in cuts]
    step = max(sum(c.seconds for c in group) for group in groups)
    if bandwidth:
        step = max(step, *(link / bandwidth for link in links), 0.0)
    return step, sum(links), peak


@pytest.mark.parametrize("seed", range(60))
def test_straight_cuts_against_brute_force(seed):
    rng = random.Random(seed)
    costs = _random_costs(rng, rng.randint(2, 8) if seed else 12)
    bandwidth, memory = rng.choice([None, 0.5, 1.0]), rng.choice([None, 12, 20, 30])
    ways = rng.choice([1, 2])
    for groups in range(1, min(len(costs), 5) + 1):
        every = combinations(range(1, len(costs)), groups - 1)
        judged = [_judged(costs, list(cuts), bandwidth, memory, ways) for cuts in every]
        options = {"bandwidth": bandwidth, "memory": memory, "there_and_back": ways == 2}
        if not any(judged):
            with pytest.raises(ValueError, match="no cut of"):
                straight_cuts(costs, groups, **options)
            continue
        found = straight_cuts(costs, groups, **options)
        best = min(one for one in judged if one)
        assert _judged(costs, found, bandwidth, memory, ways) == best
