"""Profiles: bytes by hand, seconds of something slow, and a model that stays what it was."""

import time

import pytest
import torch
from torch import nn

from alkit import one_hot, to_al, to_bp
from alkit.clock import simulate
from alkit.costs import BlockCost, _Profiled, durations, profile
from alkit.schedule import al, block_by_block
from alkit.stacks import Stack
from alkit.train import full_state
from alkit.validate import validate


class _Slow(nn.Module):
    """A layer that takes its time."""

    def __init__(self, width: int, seconds: float = 0.0) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(width, width), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


def _batches(count=6, batch=8, width=5, classes=3):
    y = one_hot(torch.arange(batch) % classes, classes)
    return [(torch.randn(batch, width), y) for _ in range(count)]


def _blocks(seconds=(0.0, 0.02, 0.0)):
    return [_Slow(5, each) for each in seconds]


@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("make", [to_al, to_bp])
def test_the_slow_block_is_found_and_the_model_untouched(make, busy):
    model = make(_blocks(), 3, torch.zeros(2, 5))
    before = {name: tensor.clone() for name, tensor in full_state(model).items()}
    costs = profile(model, _batches(), busy=busy, progress=False)
    assert len(costs) == len(model)
    assert max(costs, key=lambda cost: cost.seconds) is costs[1]
    assert 0.02 <= costs[1].forward_s < 0.2
    after = full_state(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_bytes_by_hand():
    model = to_bp(_blocks((0.0,)), 3, torch.zeros(2, 5))
    first, head = profile(model, _batches(batch=8), progress=False)
    assert first.output_bytes == 8 * 5 * 4
    assert first.saved_bytes == 8 * 5 * 4  # a linear layer keeps its input
    assert first.parameter_bytes == (5 * 5 + 5) * 4
    assert head.output_bytes == 0  # the loss goes nowhere


def _plain():
    torch.manual_seed(0)
    return to_bp(_blocks((0.0, 0.0)), 3, torch.zeros(2, 5)), _batches(1)[0]


def _recurrent():
    """The last block's states are left alone by the head: they have no gradient."""
    stack = Stack(kind="lstm", layers=2, width=6, texts=4, tokens=5)
    return stack.model("bp"), next(stack.stream())


@pytest.mark.parametrize("make", [_plain, _recurrent])
def test_block_by_block_is_backprop(make):
    assert validate(block_by_block(3)).staleness == (0, 0, 0)
    model, batch = make()
    copied = _Profiled(model)
    for stage in copied.stages:
        stage.update = lambda *_: None
    copied.train([batch], 1)
    seen = [p.grad for p in copied.model.parameters()]
    model.loss(*batch).backward()
    expected = [p.grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_costs_feed_the_clock():
    costs = [BlockCost(1.0, 2.0, 0.5), BlockCost(1.0, 2.0, 0.5)]
    assert simulate(al(2), durations(costs), 4).span_s == pytest.approx(4 * 7.0)


def test_too_few_batches():
    model = to_bp(_blocks((0.0,)), 3, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="give 3 or more"):
        profile(model, _batches(2), progress=False)
