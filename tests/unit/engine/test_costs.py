"""Cuts that balance the costs of blocks are those of brute force."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.engine.costs import balanced_cuts


def _worst(costs, cuts):
    bounds = [0, *cuts, len(costs)]
    return max(sum(costs[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.just(0.0) | st.floats(0, 5), min_size=1, max_size=9), st.data())
def test_cuts_are_those_of_brute_force(costs, data):
    groups = data.draw(st.integers(1, len(costs)))
    best = min(_worst(costs, c) for c in combinations(range(1, len(costs)), groups - 1))
    cuts = balanced_cuts(costs, groups)
    assert len(cuts) == groups - 1
    assert [0, *cuts] == sorted({0, *cuts}), "no group is empty"
    assert _worst(costs, cuts) == pytest.approx(best)
