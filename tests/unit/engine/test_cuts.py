"""Balanced cuts against brute force."""

import random
from itertools import combinations

import pytest

from alkit.engine.costs import balanced_cuts


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
