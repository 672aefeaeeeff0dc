"""Gradients that lie in one memory, first operators in place, outputs without a gradient."""

import random
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.delayed import METHODS, Pipeline, schedule_for, train_epoch
from alkit.delayed.methods import method_named
from alkit.delayed.options import Options
from alkit.delayed.stage import ModuleStage
from alkit.engine.local import run_single
from studies.recursion import recursion
from tests.unit.delayed.nets import CLASSES, WIDTH, bits, vectors

REPLAYS = ("fr", "fr_barrier", "fr_1f1b", "pipedream_recompute")


class Position(nn.Module):
    """x + p: at batch 1 torch's gradients of x and p are one and the same tensor."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        return x + self.position


def positions():
    """Five modules, in the middle of which a gradient is handed on and kept."""
    torch.manual_seed(0)
    made = [nn.Sequential(Position(), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    return [*made, nn.Linear(WIDTH, CLASSES)]


def in_place_sgd(parameters):
    """Torch's own Nesterov SGD over lists: it adds the momentum to the gradients in place."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=True)


def halving_sgd(parameters):
    """An optimiser that changes its gradients first, as many do that decay or normalise."""

    class Halving(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)
            super().step()

    return Halving(parameters, lr=0.1)


def pipelined(optimizer):
    blocks = positions()
    return Pipeline(blocks, F.cross_entropy, range(1, len(blocks)), optimizer)


OPTIMIZERS = {"nesterov": in_place_sgd, "halving": halving_sgd}


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["seq", "ddg", "fr", "pipedream"])
def test_what_is_handed_on_is_not_changed_by_the_update(method, optimizer, clip):
    """In every order that threads may take: the update before or after the neighbour's backward."""
    made = OPTIMIZERS[optimizer]
    expected = pipelined(made)
    losses = recursion(expected, vectors(6, 1), method) if clip is None else None
    seen = []
    for seed in range(6):
        model, chooser = pipelined(made), random.Random(seed)
        stages = [
            ModuleStage(model, k, method_named(method), Options(clip=clip), 1)
            for k in range(len(model))
        ]
        run_single(
            schedule_for(method, len(model)), stages, vectors(6, 1), choose=chooser.randrange
        )
        seen.append([stages[-1].losses.rows().squeeze(1), *bits(model)])
    if losses is not None:
        seen.append([losses, *bits(expected)])
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_threads_that_update_before_the_neighbour_looks():
    """A slow backward below: the gradient waits while its maker clips and steps."""

    def run(executor, slow):
        model = pipelined(in_place_sgd)
        for module in model:
            if slow:
                module.register_full_backward_pre_hook(lambda *_: time.sleep(0.002))
        record = train_epoch(model, vectors(5, 1), "pipedream", executor, clip=0.01)
        return [record.losses, *bits(model)]

    one = run("single", slow=False)
    for _ in range(3):
        other = run("threads", slow=True)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_two_weights_with_one_gradient_are_halved_once_each():
    """a + b: their gradients are one tensor, which would be halved twice."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(1, CLASSES)) for _ in range(2))

        def forward(self, x):
            return x + self.a + self.b

    torch.manual_seed(0)
    model = Pipeline([nn.Linear(WIDTH, CLASSES), Sum()], F.cross_entropy, [1], halving_sgd)
    train_epoch(model, vectors(1, 1), "seq")
    own = model[1].blocks[0]
    x, y = vectors(1, 1)[0]
    torch.manual_seed(0)
    score = nn.Linear(WIDTH, CLASSES)(x).detach().requires_grad_()
    F.cross_entropy(score, y).backward()
    torch.testing.assert_close(own.a, -0.05 * score.grad)
    torch.testing.assert_close(own.b, -0.05 * score.grad)


def test_a_gradient_that_is_one_number_seen_many_times_can_be_clipped():
    """The gradient of a sum is a single number expanded: an operator in place can't write it."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.w.sum()

    model = Pipeline([Scaled(), nn.Linear(WIDTH, CLASSES)], F.cross_entropy, [1], in_place_sgd)
    train_epoch(model, vectors(3), "pipedream", clip=0.01)
    assert len(set(model[0].blocks[0].w.tolist())) == 1
    assert model[0].blocks[0].w[0] != 1


def test_nothing_is_copied_where_memory_is_not_shared(monkeypatch):
    copies = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, **o: copies.append(t) or clone(t, **o))
    torch.manual_seed(0)
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)]
    train_epoch(Pipeline(blocks, F.cross_entropy, [1, 2], halving_sgd), vectors(4), "seq", clip=1.0)
    assert not copies


def test_sparse_gradients_pass():
    def blocks(sparse):
        torch.manual_seed(0)
        return [nn.EmbeddingBag(9, WIDTH, sparse=sparse), nn.Linear(WIDTH, CLASSES)]

    ids = torch.arange(12).view(4, 3) % 9
    batches = [(ids, torch.arange(4) % CLASSES)] * 3
    seen = []
    for sparse in (True, False):
        model = Pipeline(blocks(sparse), F.cross_entropy, [1], plain_sgd)
        seen.append([train_epoch(model, batches, "pipedream").losses, *bits(model)])
    torch.testing.assert_close(*seen)  # a sparse gradient adds equal rows up in another order


class Shift(nn.Module):
    """Adds to its input in place, as a careless normalisation of pictures does."""

    def forward(self, x):
        return x.add_(0.5).mul_(0.7)


def shifting(first=Shift):
    torch.manual_seed(0)
    return [
        nn.Sequential(first(), nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        nn.Linear(WIDTH, CLASSES),
    ]


class Out(nn.Module):
    """The same out of place."""

    def forward(self, x):
        return x.add(0.5).mul(0.7)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("method", [*REPLAYS, "pipedream", "seq"])
def test_a_first_operator_in_place_is_run_again_on_the_same_input(method):
    seen = []
    for first in (Shift, Out):
        model = Pipeline(shifting(first), F.cross_entropy, [1, 2], plain_sgd)
        record = train_epoch(model, vectors(8), method)
        seen.append([record.losses, *bits(model)])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("method", REPLAYS)
def test_the_recursion_runs_it_on_the_same_input_too(method):
    seen = []
    for first in (Shift, Out):
        model = Pipeline(shifting(first), F.cross_entropy, [1, 2], plain_sgd)
        true = []
        losses = recursion(
            model, vectors(8), method, watch=lambda _, one, other, true=true: true.append(other)
        )
        truth = [g for each in true for module in each for g in module]
        seen.append([losses, *bits(model), *truth])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_a_module_that_works_in_place_on_some_batches_only_is_refused():
    class Sometimes(nn.Module):
        def forward(self, x):
            return x.add_(0.5) if x[0, 0] > 1e3 else x

    model = Pipeline(shifting(Sometimes), F.cross_entropy, [1, 2], plain_sgd)
    batches = vectors(6)
    batches[4][0][0, 0] = 2e3
    with pytest.raises(RuntimeError, match="changes its input in place.*batch 4.*out of place"):
        train_epoch(model, batches, "fr")


class Pair(nn.Module):
    """Hands on two tensors."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.one(x), self.two(x)


class Detached(nn.Module):
    """Looks at its input, but lets no gradient through."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x[0].detach() if isinstance(x, tuple) else x.detach())


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"2bw", "gpipe", "1f1b"}))
def test_a_module_whose_output_gets_no_gradient_is_frozen_or_named(method):
    with pytest.raises(ValueError, match="can learn and gets no gradient"):
        train_epoch(Pipeline(_cut_off(), F.cross_entropy, [1, 2], plain_sgd), vectors(6), method)
    blocks = _cut_off()
    blocks[0].requires_grad_(False)
    model = Pipeline(blocks, F.cross_entropy, [1, 2], plain_sgd)
    before = bits(model)
    train_epoch(model, vectors(6), method)
    after = bits(model)
    still = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert still == [True] * 4 + [False] * 4
    if not method.endswith("_inplace"):
        blocks = _cut_off()
        blocks[0].requires_grad_(False)
        other = Pipeline(blocks, F.cross_entropy, [1, 2], plain_sgd)
        recursion(other, vectors(6), method)
        assert all(torch.equal(a, b) for a, b in zip(after, bits(other), strict=True))


def _cut_off():
    torch.manual_seed(0)
    return [Pair(), nn.Sequential(Detached(), nn.Tanh()), nn.Linear(WIDTH, CLASSES)]


def test_a_loss_that_no_weight_has_a_part_in_is_refused():
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)]
    model = Pipeline(blocks, lambda out, y: F.cross_entropy(out.detach(), y), [1], plain_sgd)
    with pytest.raises(ValueError, match="the loss depends on nothing that module 1 trains"):
        train_epoch(model, vectors(2), "seq")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_keep_their_digits(dtype):
    torch.manual_seed(0)
    model = Pipeline(shifting(Out), F.cross_entropy, [1, 2], plain_sgd).to(dtype)
    batches = [(x.to(dtype), y) for x, y in vectors(4)]
    x, y = batches[0]
    first = x
    for module in model:
        first = module(first, (0, 0))
    expected = F.cross_entropy(first, y).detach()
    record = train_epoch(model, batches, "pipedream")
    assert record.losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert record.losses[0] == expected
    assert recursion(model, batches, "pipedream").dtype == record.losses.dtype
