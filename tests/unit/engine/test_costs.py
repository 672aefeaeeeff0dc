"""Costs: bytes by hand, seconds of something slow, an untouched model; cuts by brute force."""

import random
from itertools import combinations

import pytest
import torch
from torch import nn

from alkit import one_hot, to_al, to_bp
from alkit.engine import run as engine
from alkit.engine.costs import backprop_stages, balanced_cuts
from alkit.engine.optimizers import adam
from alkit.engine.run import run_single
from alkit.schedule.flushed import block_by_block
from alkit.schedule.validate import validate
from studies.al.profile import profile
from studies.common.stacks import Stack
from tests.helpers import Clock, full_state

CLOCK, WARMUP = Clock(), 2


class _Slow(nn.Module):
    """A layer that takes its time, on the clock of these tests; ten times as long at first."""

    def __init__(self, width: int, seconds: float = 0.0) -> None:
        super().__init__()
        self.linear, self.seconds, self.calls = nn.Linear(width, width), seconds, 0

    def forward(self, x):
        self.calls += 1
        CLOCK.sleep(self.seconds * (10 if self.calls <= WARMUP else 1))
        return self.linear(x)


def _batches(count=6, batch=8, width=5, classes=3):
    y = one_hot(torch.arange(batch) % classes, classes)
    return [(torch.randn(batch, width), y) for _ in range(count)]


def _blocks(seconds=(0.25, 1.0, 0.0)):
    return [_Slow(5, each) for each in seconds]


@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("make", [to_al, to_bp])
def test_the_slow_block_is_found_and_the_model_untouched(make, busy, monkeypatch):
    model = make(_blocks(), 3, torch.zeros(2, 5))
    before = {name: tensor.clone() for name, tensor in full_state(model).items()}
    for module in model.modules():
        if isinstance(module, _Slow):
            module.calls = 0  # shapes were found by a dry run
    monkeypatch.setattr(engine, "time", CLOCK)
    costs = profile(model, _batches(4), busy=busy, warmup=WARMUP)
    assert len(costs) == len(model)
    forward_s = [cost.forward_s for cost in costs]
    assert forward_s == [0.25, 1.0] + [0.0] * (len(model) - 2)
    assert [cost.seconds for cost in costs] == forward_s
    after = full_state(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_bytes_by_hand():
    model = to_bp(_blocks((0.0,)), 3, torch.zeros(2, 5))
    first, head = profile(model, _batches(batch=8))
    assert first.output_bytes == 8 * 5 * 4
    assert first.saved_bytes == 8 * 5 * 4  # a linear layer keeps its input
    assert first.parameter_bytes == (5 * 5 + 5) * 4
    assert head.output_bytes == 0  # the loss goes nowhere
    with pytest.raises(ValueError, match="give 3 or more"):
        profile(model, _batches(2))


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
    stages = backprop_stages(model, model.loss_fn, adam)
    for stage in stages:
        stage.update = lambda *_: None
    run_single(block_by_block(len(stages)), stages, [batch])
    seen = [p.grad for stage in stages for p in stage.block.parameters()]
    model.loss(*batch).backward()
    expected = [p.grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


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
