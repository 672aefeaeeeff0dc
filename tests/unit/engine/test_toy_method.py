"""The method of docs/toy_method.py on all executors, against a plain loop."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from alkit import launch
from alkit.engine.ranks import run_ranks
from alkit.engine.run import run_single, run_threads
from alkit.schedule.clock import simulate
from alkit.schedule.validate import validate

FILE = Path(__file__).resolve().parents[3] / "docs" / "toy_method.py"


def _toy():
    sys.path.insert(0, str(FILE.parent))
    import toy_method

    return toy_method


def _made():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(3)]
    batches = [(torch.randn(4, 5).double(), torch.randint(5, (4,))) for _ in range(6)]
    return blocks, batches


def _by_hand():
    """Backprop through all blocks; the last one's steps come a batch late."""
    blocks, batches = _made()
    losses, late = [], None
    for x, y in batches:
        loss = cross_entropy(nn.Sequential(*blocks)(x), y)
        losses.append(float(loss.detach()))
        weights = [list(block.parameters()) for block in blocks]
        found = torch.autograd.grad(loss, sum(weights, []))
        now = [*zip(sum(weights[:2], []), found, strict=False)]
        for parameter, gradient in [*now, *(late or [])]:
            parameter.data -= 0.1 * gradient
        late = [*zip(weights[2], found[len(now) :], strict=True)]
    return losses


def _trained(executor):
    blocks, batches = _made()
    return _toy().train(blocks, cross_entropy, batches, executor)


def test_it_is_the_plain_loop_on_all_executors():
    expected = pytest.approx(_by_hand(), rel=1e-12)
    assert _trained(run_single) == _trained(run_threads) == expected
    assert launch(_trained, run_ranks, ranks=3)[2] == expected
    schedule = _toy().late_last(3)
    assert validate(schedule).staleness == (0, 0, 1)
    assert simulate(schedule, lambda task: 1.0, 4).span_s > 0
    assert len(FILE.read_text().splitlines()) < 80
