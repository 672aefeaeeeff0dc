"""Orders that a user gives for flushed methods: the same gradients, on all executors."""

from functools import partial

import pytest
import torch
from torch import nn

import alkit
from alkit.schedule.flushed import one_f_one_b, zero_bubble
from alkit.schedule.ordered import of_orders
from alkit.schedule.torch_csv import to_csv
from tests.helpers import on_ranks
from tests.unit.delayed.nets import equal, outcome, trained, vectors

NAMES = ("interleaved_1f1b", "looped_bfs")


def blocks():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
    return [*hidden, nn.Linear(6, 3)]


def record(executor, name, micro=4, **own):
    options = {"schedule": name, "micro": micro} | own
    return trained(blocks(), 4, vectors(6), "1f1b", executor, **options)


def run(executor, name, **own):
    return outcome(record(executor, name, **own))


def two(executor, **own):
    """Return a run of two modules on two workers."""
    options = {"schedule": "looped_bfs", "micro": 4} | own
    return outcome(trained(blocks(), 2, vectors(6), "1f1b", executor, **options))


def test_bits_are_equal_on_all_executors_and_gradients_are_those_of_1f1b():
    plain = outcome(trained(blocks(), 4, vectors(6), "1f1b", micro=4))
    calls = {name: partial(run, name=name) for name in NAMES} | {"two": two}
    ranks = on_ranks(calls, executor="ranks")
    for name in NAMES:
        single = run("single", name)
        torch.testing.assert_close(single, plain, rtol=1e-5, atol=1e-7)
        assert equal(run("threads", name), single)
        assert all(equal(found, single) for found in ranks[name])
    assert equal(run("single", "interleaved_1f1b"), plain)  # gradients add up alike there
    assert len(record("threads", "looped_bfs", workers=4).timeline.resources) == 4
    assert all(equal(found, two("single", workers=2)) for found in ranks["two"])  # a worker is one


def test_a_file_and_a_schedule_are_run(tmp_path):
    made = one_f_one_b(4, 2)
    to_csv(made, tmp_path / "own.csv")
    plain = outcome(trained(blocks(), 4, vectors(6), "1f1b", micro=2))
    for given in (tmp_path / "own.csv", str(tmp_path / "own.csv"), made):
        assert equal(run("single", given, micro=1), plain)


def test_fit_cuts_as_the_schedule_asks(tmp_path):
    x = torch.randn(64, 6)
    data, options = (x, x[:, :3].argmax(1)), {"method": "1f1b", "progress": False, "micro": 4}
    made = alkit.fit(blocks(), data, workers=2, schedule="interleaved_1f1b", **options)
    assert len(made.model) == 4
    assert len(made.timeline.resources) == 2
    own = {"cuts": [2], "workers": 2, "schedule": "looped_bfs"}
    assert len(alkit.fit(blocks(), data, **own, **options).timeline.resources) == 2
    to_csv(one_f_one_b(3, 4), tmp_path / "three.csv")
    assert len(alkit.fit(blocks(), data, schedule=tmp_path / "three.csv", **options).model) == 3


@pytest.mark.parametrize(
    ("method", "given", "micro", "words"),
    [
        ("pipedream", "looped_bfs", 1, "schedule= is for gpipe, 1f1b"),
        ("1f1b", "fastest", 4, r"no schedule 'fastest': give interleaved_1f1b, looped_bfs, or a"),
        ("1f1b", one_f_one_b(3, 4), 4, "has 3 stages and 4 micro-batches, and there are 4 modules"),
        ("1f1b", one_f_one_b(4, 4), 2, "has 4 stages and 4 micro-batches, .* and 2 micro-batches"),
        ("1f1b", zero_bubble(4, 4), 4, "only whole backwards are run so far"),
        ("1f1b", "interleaved_1f1b", 5, "give a multiple"),
    ],
)
def test_what_does_not_fit_is_refused(method, given, micro, words):
    with pytest.raises(ValueError, match=words):
        trained(blocks(), 4, vectors(2), method, schedule=given, micro=micro)


def test_workers_that_a_file_does_not_have_are_refused():
    with pytest.raises(ValueError, match="has 4 workers, and workers is 2"):
        run("threads", one_f_one_b(4, 4), workers=2)


def test_an_order_that_would_wait_for_ever_is_refused_before_the_first_step():
    forwards = [("forward", 0, 0), ("backward", 0, 0)]
    stuck = [[("backward", at, 0), ("forward", at, 0)] for at in range(1, 4)]
    with pytest.raises(ValueError, match="deadlocks"):
        trained(blocks(), 4, vectors(2), "1f1b", schedule=of_orders("own", [forwards, *stuck]))
