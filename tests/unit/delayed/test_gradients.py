"""Gradients that lie in one memory, and first operators in place."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import clipped
from alkit.delayed import Pipeline, train_epoch
from studies.delayed.recursion import recursion
from tests.unit.delayed.nets import (
    CLASSES,
    WIDTH,
    bits,
    equal,
    outcome,
    stepped_in_any_order,
    vectors,
)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def in_place_sgd(parameters):
    """Torch's own Nesterov SGD over lists: it adds the momentum to the gradients in place."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=True)


def halving_sgd(parameters):
    """An optimiser that changes its gradients first, as many do that decay or normalise."""

    class Halving(torch.optim.SGD):
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
            super().step()

    return Halving(parameters, lr=0.1)


def pipelined(blocks, optimizer=plain_sgd):
    """Cut after every block."""
    return Pipeline(blocks, F.cross_entropy, range(1, len(blocks)), optimizer)


class Position(nn.Module):
    """x + p: at batch 1 torch's gradients of x and p are one and the same tensor."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        return x + self.position


def positions(optimizer):
    """Five modules, in the middle of which a gradient is handed on and kept."""
    torch.manual_seed(0)
    made = [nn.Sequential(Position(), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    return pipelined([*made, nn.Linear(WIDTH, CLASSES)], optimizer)


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("optimizer", [in_place_sgd, halving_sgd])
@pytest.mark.parametrize("method", ["seq", "ddg", "fr", "pipedream"])
def test_what_is_handed_on_is_not_changed_by_the_update(method, optimizer, clip):
    """In every order that threads may take: the update before or after the neighbour's backward."""
    seen = []
    for seed in range(3):
        made = optimizer if clip is None else clipped(optimizer, clip)
        own = positions(made), method, vectors(6, 1), random.Random(seed)
        seen.append(stepped_in_any_order(*own))
    if clip is None:
        expected = positions(optimizer)
        losses = recursion(expected, vectors(6, 1), method)
        seen.append([losses[:, None], *bits(expected)])
    assert all(equal(seen[0], other) for other in seen[1:])


class Sum(nn.Module):
    """a + b: their gradients are one tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(1, CLASSES)) for _ in range(2))

    def forward(self, x):
        return x + self.a + self.b


def test_two_weights_with_one_gradient_are_halved_once_each():
    linear, own = nn.Linear(WIDTH, CLASSES), Sum()
    x, y = vectors(1, 1)[0]
    score = linear(x).detach().requires_grad_()
    F.cross_entropy(score, y).backward()
    train_epoch(pipelined([linear, own], halving_sgd), [(x, y)], "seq")
    torch.testing.assert_close(own.a, -0.05 * score.grad)
    torch.testing.assert_close(own.b, -0.05 * score.grad)


class Shift(nn.Module):
    """Adds to its input in place, as a careless normalisation of pictures does."""

    def forward(self, x):
        return x.add_(0.5).mul_(0.7)


class Out(nn.Module):
    """The same out of place."""

    def forward(self, x):
        return x.add(0.5).mul(0.7)


def shifting(first=Shift):
    torch.manual_seed(0)
    return pipelined([
        nn.Sequential(first(), nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        nn.Linear(WIDTH, CLASSES),
    ])  # fmt: skip


@pytest.mark.parametrize("method", ["fr", "pipedream_recompute", "pipedream", "seq"])
def test_a_first_operator_in_place_is_run_again_on_the_same_input(method):
    seen = [outcome(train_epoch(shifting(first), vectors(8), method)) for first in (Shift, Out)]
    assert equal(*seen)


class Sometimes(nn.Module):
    def forward(self, x):
        return x.add_(0.5) if x[0, 0] > 1e3 else x


def test_a_module_that_works_in_place_on_some_batches_only_is_refused():
    batches = vectors(6)
    batches[4][0][0, 0] = 2e3
    with pytest.raises(RuntimeError, match="changes its input in place.*batch 4.*out of place"):
        train_epoch(shifting(Sometimes), batches, "fr")
