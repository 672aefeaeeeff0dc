"""What is equal to what, bit for bit: E1 to E17 of the methods' mathematics."""

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.delayed import METHODS, train_epoch
from alkit.delayed.schedules import SHARED
from studies.delayed.recursion import recursion
from tests.helpers import on_ranks
from tests.unit.delayed.nets import (
    bits,
    equal,
    images,
    mlp,
    momentum,
    outcome,
    pipeline,
    plain,
    resnet,
    same,
    stepped_in_any_order,
    trained,
    vectors,
)

DELAYED = ("ddg", "ddg_barrier", "pipedream", "pipedream_recompute", "fr", "fr_barrier", "fr_1f1b")
MICRO = {name: {"micro": 4} if method.accumulates else {} for name, method in METHODS.items()}


def noisy():
    return mlp(dropout=0.2)


@pytest.mark.parametrize(
    ("made", "modules", "batches"),
    [(noisy, 1, vectors(12)), (noisy, 3, vectors(12)), (resnet, 11, images(6))],
)
def test_e1_sequential_with_any_cut_is_sgd(made, modules, batches):
    losses, tensors = plain(made(), batches)
    assert equal(outcome(trained(made(), modules, batches, "seq")), [losses, *tensors])


@pytest.mark.parametrize("method", [*DELAYED, "pipedream_sync", "pipedream_inplace", "ddg_inplace"])
def test_e2_with_one_module_all_are_sgd(method):
    assert same(*(trained(noisy(), 1, vectors(8), each) for each in (method, "seq")))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_e4_the_order_of_what_is_ready_does_not_matter(method):
    """On one thread, on a thread a module, and on free workers that take any module's task."""
    batches = vectors(8)
    expected = trained(noisy(), 4, batches, method, **MICRO[method])
    for seed in range(2):
        own = pipeline(noisy(), 4), method, batches, random.Random(seed)
        assert equal(stepped_in_any_order(*own, **MICRO[method])[1:], bits(expected.pipeline))
    shared = method in SHARED  # two workers of two modules each
    for workers in (None, 2) if shared else (None, 2, 3):
        own = {"workers": workers, **MICRO[method]}
        other = trained(noisy(), 4, batches, method, "threads", **own)
        assert same(expected, other)
        assert len(other.timeline.resources) == (workers or (2 if shared else 4))


@pytest.mark.parametrize(
    ("made", "modules", "batches", "method"),
    [
        *((noisy, 3, vectors(12), method) for method in (*DELAYED, "seq", "pipedream_sync")),
        *((noisy, 6, vectors(12), method) for method in ("pipedream", "fr", "ddg")),
        (resnet, 11, images(13), "fr"),
    ],
)
def test_e5_e6_e7_pipelines_are_their_recursions(made, modules, batches, method):
    one, other = (pipeline(made(), modules) for _ in range(2))
    losses = recursion(other, batches, method)
    assert equal(outcome(train_epoch(one, batches, method)), [losses, *bits(other)])


def parameters(blocks):
    return [parameter for block in blocks for parameter in block.parameters()]


def copied(values, into):
    """Copy values into others."""
    for value, other in zip(values, into, strict=True):
        other.data.copy_(value)


def test_e7_vertical_sync_is_delayed_sgd():
    """One network, one optimiser, gradients at weights of K - 1 updates ago."""
    live, stale = (nn.Sequential(*mlp()) for _ in range(2))
    stepper, old = momentum(live.parameters()), [parameters(mlp())]
    for number, (x, y) in enumerate(vectors(12)):
        copied(old[max(0, number - 2)], parameters(stale))
        stale.zero_grad()
        F.cross_entropy(stale(x), y).backward()
        for own, at in zip(live.parameters(), stale.parameters(), strict=True):
            own.grad = at.grad.clone()
        stepper.step()
        old.append([each.detach().clone() for each in live.parameters()])
    copied(stale.buffers(), live.buffers())
    record = trained(mlp(), 3, vectors(12), "pipedream_sync")
    assert equal(bits(record.pipeline), bits([live]))


RUNS = {name: own for name, own in MICRO.items() if name not in SHARED}  # see test_own_schedule
RUNS["1f1b clipped"] = {"micro": 4, "clip": 0.05}


def _found(name, executor="single"):
    """Return what four modules end in."""
    method = name.partition(" ")[0]
    record = trained(noisy(), 4, vectors(12), method, executor, **RUNS[name])
    return outcome(record), record.versions


@pytest.fixture(scope="module")
def four():
    """What four ranks find, one run after the other."""
    return on_ranks({name: partial(_found, name) for name in RUNS}, ranks=4, executor="ranks")


@pytest.mark.parametrize("name", RUNS)
def test_e8_ranks_end_in_the_same_bits(name, four):
    tensors, versions = _found(name)
    assert all(equal(found, tensors) and seen == versions for found, seen in four[name])


@pytest.mark.parametrize("method", DELAYED)
def test_e9_and_e13_frozen_weights_give_backprop(method):
    """Also the gradients of every batch, with dropout, are those of backprop when run again."""
    seen, expected = (_frozen(each) for each in (method, "seq"))
    assert same(seen[0], expected[0])
    assert equal(seen[1], expected[1])


def _frozen(method, **settings):
    """Return a record, and all gradients: SGD with rate 0 that keeps what it was given."""
    kept = []

    class Keep(torch.optim.SGD):
        def step(self):
            kept.extend(p.grad.clone() for group in self.param_groups for p in group["params"])

    made = pipeline(noisy(), 3, lambda parameters: Keep(parameters, lr=0.0))
    record = train_epoch(made, vectors(6), method, **settings)
    # by module and batch: the order of steps differs between methods
    return record, sorted(kept, key=lambda t: (t.shape, t.flatten().tolist()))


def test_e14_recompute_is_the_saved_graph():
    own = "pipedream_recompute"
    saved = trained(noisy(), 4, vectors(9), "pipedream")
    assert same(trained(noisy(), 4, vectors(9), own), saved)
    assert not same(trained(noisy(), 4, vectors(9), own, replay_noise=False), saved)


@pytest.mark.parametrize(("modules", "count"), [(2, 1), (3, 2), (4, 3), (2, 12), (4, 12)])
def test_e15_what_is_in_flight(modules, count):
    """Right after an update; of short runs some versions are never needed, and not held."""
    record = trained(mlp(), modules, vectors(count), "pipedream")
    delays = [modules - k for k in range(modules)]
    assert record.flights == tuple(min(count, d) for d in delays)
    most = tuple(min(count + 1, d) for d in delays)
    assert all(seen <= bound for seen, bound in zip(record.versions, most, strict=True))
    if count >= 2 * modules:
        assert record.versions == most
        synced = trained(mlp(), modules, vectors(count), "pipedream_sync")
        assert synced.versions == (modules,) * modules


@pytest.mark.parametrize("method", ["2bw", "gpipe", "1f1b"])
def test_e17_micro_batches_accumulate_and_2bw_is_one_update_late(method):
    live, taken = (nn.Sequential(*mlp()) for _ in range(2))
    stepper = momentum(live.parameters())
    older = newest = [p.detach().clone() for p in live.parameters()]
    for x, y in vectors(8):
        copied(older if method == "2bw" else newest, taken.parameters())
        taken.zero_grad()
        for rows in ([0, 1], [2, 3], [4, 5], [6, 7]):
            (F.cross_entropy(taken(x[rows]), y[rows]) / 4).backward()
        for own, at in zip(live.parameters(), taken.parameters(), strict=True):
            own.grad = at.grad.clone()
        stepper.step()
        older, newest = newest, [p.detach().clone() for p in live.parameters()]
    copied(taken.buffers(), live.buffers())
    record = trained(mlp(), 3, vectors(8), method, micro=4)
    assert equal(bits(record.pipeline), bits([live]))
