"""The method of docs/toy_method.py on one thread and on several, against a plain loop."""

import runpy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from alkit.base.paths import root
from alkit.engine.run import run_single, run_threads


def made():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(3)]
    return blocks, [(torch.randn(4, 5).double(), torch.randint(5, (4,))) for _ in range(6)]


def by_hand():
    """Backprop through all blocks; the last one's steps come a batch late."""
    (blocks, batches), losses, late = made(), [], []
    own = [p for block in blocks for p in block.parameters()]
    for x, y in batches:
        loss = cross_entropy(nn.Sequential(*blocks)(x), y)
        losses.append(float(loss.detach()))
        pairs = [*zip(own, torch.autograd.grad(loss, own), strict=True)]
        for parameter, gradient in [*pairs[:-2], *late]:
            parameter.data -= 0.1 * gradient
        late = pairs[-2:]
    return losses


def test_it_is_the_plain_loop():
    train = runpy.run_path(str(root() / "docs" / "toy_method.py"))["train"]
    one, several = (
        train(made()[0], cross_entropy, made()[1], run) for run in (run_single, run_threads)
    )
    assert one == several == pytest.approx(by_hand(), rel=1e-12)
