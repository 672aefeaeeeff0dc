"""Flushed methods by their own orders and by given ones; what micro-batches may do beside these."""

import hashlib
from collections import deque
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import alkit
from alkit.delayed import schedule_for
from alkit.delayed.methods import ORDERS
from alkit.schedule.flushed import of_orders, one_f_one_b
from alkit.schedule.task import Task
from alkit.schedule.torch_orders import to_csv, torch_order
from alkit.schedule.validate import validate
from tests.helpers import on_ranks
from tests.make import labelled, tanh_blocks
from tests.unit.delayed.nets import bits, equal, mlp, outcome, trained, vectors

SHARED = ("interleaved_1f1b", "looped_bfs", "zbv", "dualpipev")
NEIGHBOURS = ("gpipe", "1f1b", "zero_bubble")


def run(executor, name, micro=4, modules=4, **own):
    own |= {"micro": micro}
    method = name if isinstance(name, str) and name in ORDERS else "1f1b"
    own |= {} if name == method else {"schedule": name}
    return outcome(trained(tanh_blocks(4), modules, vectors(6), method, executor, **own))


# two modules on two workers: a worker is one
CASES = {name: {"name": name} for name in SHARED + NEIGHBOURS}
CASES |= {"two": {"name": "looped_bfs", "modules": 2}}
CASES |= {"halves": {"name": "zero_bubble", "modules": 2}}


@pytest.fixture(scope="module")
def ranks():
    """What two ranks find, one run after the other."""
    return on_ranks({name: partial(run, **own) for name, own in CASES.items()}, executor="ranks")


@pytest.mark.parametrize("case", CASES)
def test_bits_are_equal_on_all_executors_and_gradients_are_those_of_1f1b(case, ranks):
    own = CASES[case]
    single, plain = run("single", **own), run("single", **own | {"name": "1f1b"})
    torch.testing.assert_close(single, plain, rtol=1e-5, atol=1e-7)
    assert case != "interleaved_1f1b" or equal(single, plain)  # gradients add up alike there
    if case != "two":
        assert equal(run("threads", **own), single)
    assert all(equal(found, single) for found in ranks[case])


def test_a_file_and_a_schedule_are_run(tmp_path):
    made = one_f_one_b(4, 2)
    (tmp_path / "own.csv").write_text(to_csv(made))
    plain = outcome(trained(tanh_blocks(4), 4, vectors(6), "1f1b", micro=2))
    for given in (tmp_path / "own.csv", str(tmp_path / "own.csv"), made):
        assert equal(run("single", given, micro=1), plain)


@pytest.mark.parametrize("name", ["zero_bubble", *SHARED])
def test_fit_cuts_as_an_order_asks(name):
    made = alkit.fit(tanh_blocks(4), labelled(64), method=name, workers=2, micro=4, progress=False)
    assert len(made.model) == (4 if name in SHARED else 2)
    assert len(made.timeline.resources) == 2


def forever():
    """Wait for what comes later."""
    first = [("forward", 0, 0), ("backward", 0, 0)]
    return [first, *([("backward", at, 0), ("forward", at, 0)] for at in range(1, 4))]


def turned():
    """Run the second micro-batch before the first, at which a batch is cut."""
    kinds = "forward", "backward"
    return [[(kind, at, m) for kind in kinds for m in (1, 0)] for at in range(4)]


REFUSED = [
    ("pipedream", one_f_one_b(4, 4), 1, "schedule= is for gpipe, 1f1b"),
    ("1f1b", "fastest", 4, r"schedule is 'fastest': give a Schedule or a .csv file"),
    ("1f1b", one_f_one_b(3, 4), 4, "has 3 stages and 4 micro-batches, and there are 4 modules"),
    ("1f1b", one_f_one_b(4, 4), 2, "has 4 stages and 4 micro-batches, .* and 2 micro-batches"),
    ("1f1b", of_orders("own", forever()), 1, "deadlocks"),
    ("1f1b", of_orders("own", turned()), 2, "stage 0 runs the forward of micro-batch 1 before 0"),
]


@pytest.mark.parametrize(("method", "given", "micro", "words"), REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_step(method, given, micro, words):
    with pytest.raises(ValueError, match=words):
        trained(tanh_blocks(4), 4, vectors(2), method, schedule=given, micro=micro)


class Shifted(nn.Module):
    """Weights beside the input, and a view."""

    def __init__(self):
        super().__init__()
        self.inner, self.shift = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.aside = nn.Linear(6, 1)

    def forward(self, x):
        own = self.aside(self.shift)
        return (self.inner(x) + own + self.shift).unflatten(1, (3, 2)).flatten(1)


class Twice(nn.Linear):
    """One weight at two places of a way."""

    def forward(self, x):
        return super().forward(torch.tanh(super().forward(x))) + x


@pytest.mark.parametrize("kind", [Shifted, partial(Twice, 6, 6)])
@pytest.mark.parametrize("name", ["zero_bubble", "zbv"])
def test_half_backwards_find_all_gradients(kind, name):
    def made():
        torch.manual_seed(0)
        return [nn.Linear(6, 6), kind(), nn.Sequential(kind(), nn.Tanh()), nn.Linear(6, 3)]

    one, other = (trained(made(), 4, vectors(4), order, micro=4) for order in ("1f1b", name))
    torch.testing.assert_close(outcome(other), outcome(one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [*NEIGHBOURS, "looped_bfs", "zbv"])
def test_a_forward_that_is_run_again_changes_nothing(method):
    """Dropout is replayed, statistics are counted once."""
    modules = 4 if method in ("looped_bfs", "zbv") else 3
    kept, again = (
        outcome(trained(mlp(dropout=0.3), modules, vectors(4), method, micro=4, recompute=own))
        for own in (False, True)
    )
    assert equal(again, kept)


@pytest.mark.parametrize("method", [*NEIGHBOURS, "looped_bfs", "zbv"])
@pytest.mark.parametrize("executor", ["single", "threads"])
def test_a_batch_of_fewer_samples_than_micro_batches_is_a_step_of_its_own(method, executor):
    """Such as the last of an epoch; its texts may be shorter, so it can't join another batch."""

    def made():
        torch.manual_seed(0)
        return [nn.EmbeddingBag(20, 6), *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in "abc")]

    words = torch.randint(20, (34, 9), generator=torch.Generator().manual_seed(0))
    y = words[:, 0] % 6
    batches = [(words[:16], y[:16]), (words[16:32], y[16:32]), (words[32:, :4], y[32:])]
    modules = 2 if method in NEIGHBOURS else 4
    plain = trained(made(), 2, batches, "1f1b")
    found = trained(made(), modules, batches, method, executor, micro=4)
    assert len(found.losses) == 3
    torch.testing.assert_close(outcome(found)[1:], outcome(plain)[1:], rtol=1e-4, atol=1e-6)


# ---- orders of others


def test_dualpipev_is_its_authors():
    """The digest is of what their `step` computes, rank by rank, traced without tensors."""
    found = hashlib.sha256()
    for ranks in range(1, 9):
        for micro in (2 * ranks, 2 * ranks + 1, 3 * ranks + 2, 5 * ranks + 3):
            found.update(to_csv(torch_order("dualpipev", 2 * ranks, ranks, micro)).encode())
    assert found.hexdigest()[:16] == "9d724d05206f2122"


def petra(stages):
    """A forward and a backward a tick, and no weights kept: twice the delay of PipeDream."""

    def order(worker, batches):
        flying = deque()
        for batch in batches:
            flying.append(batch)
            yield Task("forward", worker, batch)
            if len(flying) == 2 * (stages - worker) - 1:
                yield from back(worker, flying.popleft())
        for batch in flying:
            yield from back(worker, batch)

    def back(worker, batch):
        return (Task(kind, worker, batch) for kind in ("backward", "update"))

    made = schedule_for("pipedream", stages)
    return replace(made, name="petra", order=order, staleness=2 * (stages - 1))


@pytest.mark.parametrize("executor", ["single", "threads"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_petras_order_trains_with_gradients_twice_as_old(stages, executor, monkeypatch):
    late = [2 * (stages - 1 - k) for k in range(stages)]
    assert list(validate(petra(stages)).staleness) == late
    monkeypatch.setattr("alkit.delayed.train.schedule_for", lambda *_, **__: petra(stages))
    sgd, batches = partial(torch.optim.SGD, lr=0.1, momentum=0.9), vectors(12)
    record = trained(tanh_blocks(stages - 1), stages, batches, "pipedream", executor, sgd)

    net = nn.Sequential(*tanh_blocks(stages - 1))
    optimizer, losses = sgd(net.parameters()), []
    versions = [{name: own.detach().clone() for name, own in net.named_parameters()}]
    for m, (x, y) in enumerate(batches):
        seen = {name: versions[max(0, m - late[int(name[0])])][name] for name in versions[0]}
        leaves = {name: own.clone().requires_grad_() for name, own in seen.items()}
        losses.append(F.cross_entropy(functional_call(net, leaves, x), y))
        gradients = torch.autograd.grad(losses[-1], [*leaves.values()])
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        versions.append({name: own.detach().clone() for name, own in net.named_parameters()})
    assert equal(
        [record.losses.flatten(), *bits(record.pipeline)], [torch.stack(losses), *net.parameters()]
    )
