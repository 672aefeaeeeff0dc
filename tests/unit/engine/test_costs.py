"""Costs of blocks: block by block is backprop; cuts by brute force."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit import to_bp
from alkit.engine.costs import backprop_stages, balanced_cuts
from alkit.engine.optimizers import adam
from alkit.engine.run import run_single
from alkit.schedule.flushed import block_by_block
from studies.common.stacks import Stack
from tests.helpers import made_batches
from tests.make import tanh_blocks


def _plain():
    return to_bp(tanh_blocks()[:2], 3, torch.zeros(2, 6)), made_batches(1, 8)[0]


def _recurrent():
    """The last block's states are left alone by the head: they have no gradient."""
    stack = Stack(kind="lstm", layers=2, width=6, texts=4, tokens=5)
    return stack.model("bp"), next(stack.stream())


@pytest.mark.parametrize("make", [_plain, _recurrent])
def test_block_by_block_is_backprop(make):
    model, batch = make()
    stages = backprop_stages(model, model.loss_fn, adam)
    for stage in stages:
        stage.update = lambda *_: None
    run_single(block_by_block(len(stages)), stages, [batch])
    seen = [p.grad for stage in stages for p in stage.block.parameters()]
    model.loss(*batch).backward()
    expected = [p.grad for p in model.parameters()]
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)


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
    assert cuts == sorted(set(cuts))
    assert _worst(costs, cuts) == pytest.approx(best)
