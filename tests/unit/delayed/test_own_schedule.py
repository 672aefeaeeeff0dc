"""Orders that a user gives for flushed methods: the same gradients, on all executors."""

from functools import partial

import pytest
import torch
from torch import nn

import alkit
from alkit.delayed.methods import ORDERS
from alkit.schedule.flushed import of_orders, one_f_one_b
from alkit.schedule.torch_orders import to_csv, torch_order
from tests.helpers import on_ranks
from tests.make import labelled, tanh_blocks
from tests.unit.delayed.nets import equal, outcome, trained, vectors

SHARED = ("interleaved_1f1b", "looped_bfs", "zbv", "dualpipev")
NEIGHBOURS = ("gpipe", "1f1b", "zero_bubble")


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def record(executor, name, micro=4, modules=4, **own):
    own |= {"micro": micro}
    method = name if isinstance(name, str) and name in ORDERS else "1f1b"
    own |= {} if name == method else {"schedule": name}
    return trained(tanh_blocks(4), modules, vectors(6), method, executor, **own)


def run(executor, name, **own):
    return outcome(record(executor, name, **own))


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


def test_there_may_be_as_many_workers_as_modules():
    assert len(record("threads", "looped_bfs", workers=4).timeline.resources) == 4


def test_a_file_and_a_schedule_are_run(tmp_path):
    made = one_f_one_b(4, 2)
    (tmp_path / "own.csv").write_text(to_csv(made))
    plain = outcome(trained(tanh_blocks(4), 4, vectors(6), "1f1b", micro=2))
    for given in (tmp_path / "own.csv", str(tmp_path / "own.csv"), made):
        assert equal(run("single", given, micro=1), plain)


def test_fit_cuts_as_the_schedule_asks(tmp_path):
    data, options = labelled(64), {"progress": False, "micro": 4}
    made = alkit.fit(tanh_blocks(4), data, workers=2, method="interleaved_1f1b", **options)
    assert len(made.model) == 4
    assert len(made.timeline.resources) == 2
    own = {"cuts": [2], "workers": 2, "method": "looped_bfs"}
    assert len(alkit.fit(tanh_blocks(4), data, **own, **options).timeline.resources) == 2
    (tmp_path / "three.csv").write_text(to_csv(one_f_one_b(3, 4)))
    options |= {"method": "1f1b", "schedule": tmp_path / "three.csv"}
    assert len(alkit.fit(tanh_blocks(4), data, **options).model) == 3


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
    ("zbv", None, 0, "micro is 0"),
    ("dualpipev", None, 3, "dualpipev with 4 stages, 2 workers and 3 micro-batches: "),
    ("interleaved_1f1b", None, 5, "interleaved_1f1b with 4 stages"),
    ("1f1b", of_orders("own", forever()), 1, "deadlocks"),
    ("1f1b", of_orders("own", turned()), 2, "stage 0 runs the forward of micro-batch 1 before 0"),
]


@pytest.mark.parametrize(("method", "given", "micro", "words"), REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_step(method, given, micro, words):
    with pytest.raises(ValueError, match=words):
        trained(tanh_blocks(4), 4, vectors(2), method, schedule=given, micro=micro)


def test_workers_that_a_file_does_not_have_are_refused():
    with pytest.raises(ValueError, match="looped_bfs has 2 workers for 4 stages: free workers"):
        run("threads", torch_order("looped_bfs", 4, 2, 4), workers=3)
    shared = run("threads", one_f_one_b(4, 4), workers=2)  # free ones, as of a method's own order
    assert equal(shared, run("single", "1f1b"))


@pytest.mark.parametrize("name", ["zero_bubble", *SHARED])
def test_by_name_they_are_methods(name):
    options = {"optimizer": sgd, "lr": 0.1, "progress": False}
    data = labelled(70)  # the last batch is smaller
    workers = {"workers": 2} if name in SHARED else {}
    made = alkit.fit(tanh_blocks(4), data, method=name, micro=4, **workers, **options)
    plain = alkit.fit(tanh_blocks(4), data, method="bp", **options)
    assert len(made.model) == 2 * (1 + (name in SHARED))
    assert len(made.timeline.resources) == 2
    ours, theirs = (dict(enumerate(own.model.parameters())) for own in (made, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Shifted(nn.Module):
    """Weights beside the input, and a view."""

    def __init__(self):
        super().__init__()
        self.inner, self.shift = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.aside = nn.Linear(6, 1)

    def forward(self, x):
        own = self.aside(self.shift)
        return (self.inner(x) + own + self.shift).unflatten(1, (3, 2)).flatten(1)


class Recomputed(nn.Linear):
    def forward(self, x):
        inner = lambda own: super(Recomputed, self).forward(own).tanh()  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


class Twice(nn.Linear):
    """One weight at two places of a way."""

    def forward(self, x):
        return super().forward(torch.tanh(super().forward(x))) + x


def recomputed():
    return nn.Sequential(Recomputed(6, 6), nn.Dropout(0.3))


def frozen():
    return nn.Linear(6, 6).requires_grad_(False)


def twice():
    return Twice(6, 6)


@pytest.mark.parametrize("kind", [Shifted, recomputed, frozen, twice])
@pytest.mark.parametrize("name", ["zero_bubble", "zbv"])
def test_half_backwards_find_all_gradients(kind, name):
    def made():
        torch.manual_seed(0)
        return [nn.Linear(6, 6), kind(), nn.Sequential(kind(), nn.Tanh()), nn.Linear(6, 3)]

    one, other = (trained(made(), 4, vectors(4), order, micro=4) for order in ("1f1b", name))
    torch.testing.assert_close(outcome(other), outcome(one), rtol=1e-5, atol=1e-6)
