"""Processes: the same bits as the single executor, for all methods."""

from functools import partial

import pytest

from alkit.delayed import METHODS
from alkit.delayed.schedules import SHARED
from tests.helpers import on_ranks
from tests.unit.delayed.nets import equal, mlp, outcome, trained, vectors

BATCHES = 20
RUNS = {
    name: {"micro": 4} if own.accumulates else {}
    for name, own in METHODS.items()
    if name not in SHARED  # see test_own_schedule
}
RUNS["1f1b clipped"] = {"micro": 4, "clip": 0.05}


def _found(name, executor="single"):
    """Return what four modules end in."""
    method = name.partition(" ")[0]
    record = trained(mlp(dropout=0.2), 4, vectors(BATCHES), method, executor, **RUNS[name])
    return outcome(record), record.versions


@pytest.fixture(scope="module")
def four():
    """What four ranks find, one run after the other."""
    return on_ranks({name: partial(_found, name) for name in RUNS}, ranks=4, executor="ranks")


@pytest.mark.parametrize("name", sorted(RUNS))
def test_e8_ranks_end_in_the_same_bits(name, four):
    tensors, versions = _found(name)
    assert all(equal(found, tensors) and seen == versions for found, seen in four[name])
