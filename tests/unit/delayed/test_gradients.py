"""Gradients that lie in one memory, first operators in place, outputs without a gradient."""

import random
import time

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

REPLAYS = ("fr", "fr_barrier", "fr_1f1b", "pipedream_recompute")


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


def pipelined(blocks, optimizer=plain_sgd, loss=F.cross_entropy):
    """Cut after every block."""
    return Pipeline(blocks, loss, range(1, len(blocks)), optimizer)


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


def test_threads_that_update_before_the_neighbour_looks():
    """A slow backward below: the gradient waits while its maker clips and steps."""

    def run(executor, slow):
        model = positions(clipped(in_place_sgd, 0.01))
        for module in model:
            if slow:
                module.register_full_backward_pre_hook(lambda *_: time.sleep(0.002))
        return outcome(train_epoch(model, vectors(5, 1), "pipedream", executor))

    one = run("single", slow=False)
    assert all(equal(one, run("threads", slow=True)) for _ in range(3))


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


class Scaled(nn.Module):
    """The gradient of a sum is a single number expanded: an operator in place can't write it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.w.sum()


def test_a_gradient_that_is_one_number_seen_many_times_can_be_clipped():
    own = Scaled()
    model = pipelined([own, nn.Linear(WIDTH, CLASSES)], clipped(in_place_sgd, 0.01))
    train_epoch(model, vectors(3), "pipedream")
    assert len(set(own.w.tolist())) == 1
    assert own.w[0] != 1


def test_nothing_is_copied_where_memory_is_not_shared(monkeypatch):
    copies = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, **o: copies.append(t) or clone(t, **o))
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)]
    train_epoch(pipelined(blocks, clipped(halving_sgd, 1.0)), vectors(4), "seq")
    assert not copies


def test_sparse_gradients_pass():
    batches = [(torch.arange(12).view(4, 3) % 9, torch.arange(4) % CLASSES)] * 3
    seen = []
    for sparse in (True, False):
        torch.manual_seed(0)
        blocks = [nn.EmbeddingBag(9, WIDTH, sparse=sparse), nn.Linear(WIDTH, CLASSES)]
        seen.append(outcome(train_epoch(pipelined(blocks), batches, "pipedream")))
    torch.testing.assert_close(*seen)  # a sparse gradient adds equal rows up in another order


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
    """Also by the recursion, and for the gradients that it compares with."""
    seen = []
    for first in (Shift, Out):
        true = []
        seen.append(outcome(train_epoch(shifting(first), vectors(8), method)))
        if method in REPLAYS:
            watch = lambda _, one, other, true=true: true.append(other)  # noqa: E731
            other = shifting(first)
            losses = recursion(other, vectors(8), method, watch=watch)
            seen[-1] += [losses, *bits(other), *(g for e in true for module in e for g in module)]
    assert equal(*seen)


class Sometimes(nn.Module):
    def forward(self, x):
        return x.add_(0.5) if x[0, 0] > 1e3 else x


def test_a_module_that_works_in_place_on_some_batches_only_is_refused():
    batches = vectors(6)
    batches[4][0][0, 0] = 2e3
    with pytest.raises(RuntimeError, match="changes its input in place.*batch 4.*out of place"):
        train_epoch(shifting(Sometimes), batches, "fr")


class Pair(nn.Linear):
    """Hands on two tensors."""

    def forward(self, x):
        return super().forward(x), x


class Detached(nn.Linear):
    """Looks at its input, but lets no gradient through."""

    def forward(self, x):
        return super().forward(x[0].detach())


@pytest.mark.parametrize("method", ["ddg_inplace", "fr", "pipedream", "seq"])
def test_a_module_whose_output_gets_no_gradient_is_frozen_or_named(method):
    def cut_off(learns=False):
        torch.manual_seed(0)
        below = Pair(WIDTH, WIDTH).requires_grad_(learns)
        middle = nn.Sequential(Detached(WIDTH, WIDTH), nn.Tanh())
        return pipelined([below, middle, nn.Linear(WIDTH, CLASSES)])

    with pytest.raises(ValueError, match="can learn and gets no gradient"):
        train_epoch(cut_off(learns=True), vectors(6), method)
    model, other = cut_off(), cut_off()
    train_epoch(model, vectors(6), method)
    pairs = zip(bits(other), bits(model), strict=True)
    assert [torch.equal(a, b) for a, b in pairs] == [True] * 2 + [False] * 4
    if not method.endswith("_inplace"):
        recursion(other, vectors(6), method)
        assert equal(bits(model), bits(other))


def test_a_loss_that_no_weight_has_a_part_in_is_refused():
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)]
    model = pipelined(blocks, loss=lambda out, y: F.cross_entropy(out.detach(), y))
    with pytest.raises(ValueError, match="the loss depends on nothing that module 1 trains"):
        train_epoch(model, vectors(2), "seq")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_keep_their_digits(dtype):
    model = shifting(Out).to(dtype)
    batches = [(x.to(dtype), y) for x, y in vectors(4)]
    first, y = batches[0]
    for module in model:
        first = module(first, (0, 0))
    expected = F.cross_entropy(first, y).detach()
    losses = train_epoch(model, batches, "pipedream").losses
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert losses[0] == expected
    assert recursion(model, batches, "pipedream").dtype == losses.dtype
