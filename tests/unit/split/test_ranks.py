"""Ranks end in the bits of one process; a fault of one ends all."""

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

import alkit
from alkit.engine.launch import RankFailed
from alkit.split import results
from alkit.split.half import SGD
from tests import fitted
from tests.helpers import on_ranks, refused
from tests.unit.split.helpers import samples, units

X, Y = samples(41)
CASES = {
    "pipelearn": {"micro": 4, "cuts": [2]},
    "longer": {"micro": 3, "cuts": [1], "epochs": 3},
    "alone": {"micro": 3, "cuts": [4]},
    "fed": {"method": "fed"},
    "splitfed": {"method": "splitfed"},
    "every step": {"micro": 2, "aggregate_every": 1, "epochs": 1},
    "rates": {"micro": 2, "scheduler": partial(ReduceLROnPlateau, patience=0)},
}
SLOW = {"profile": 1, "uplink_mbit": 0.001, "downlink_mbit": 0.001}


def fit(name="pipelearn", **options):
    torch.manual_seed(0)
    own = {"method": "pipelearn", "batch_size": 8, "epochs": 2, "lr": 0.05, "progress": False}
    own |= {"optimizer": SGD} | CASES[name] | options
    return alkit.fit(units("batch", dropout=0.3), (X, Y), (X[:16], Y[:16]), (X[16:], Y[16:]), **own)


def found(record):
    """Return all of a record that is the same wherever it is made."""
    times = [name for name in record.history if name.endswith("_s")]
    columns = record.history.drop(columns=times).to_csv()
    return fitted.digest(record), columns, record.details.rounds


def _run(name, **options):
    return found(fit(name, ranks=3, **options))


def _chosen(path):
    """Choose, go on, and be refused, by the profiler."""
    own = {"checkpoint": path, "ranks": 3, "cuts": [], "micro": 1} | SLOW
    first, then = (fit(epochs=epochs, **own).details.settings.cuts for epochs in (1, 2))
    own |= {"uplink_mbit": 1e6, "downlink_mbit": 1e6}
    return first, then, refused(partial(fit, epochs=2, **own))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """What three ranks find, one run after the other."""
    folder = tmp_path_factory.mktemp("ranks")
    calls = {name: partial(_run, name) for name in CASES}
    calls["chosen"] = partial(_chosen, folder / "run")
    events = str(folder / "events.csv")
    calls["lanes"] = partial(fit, "longer", ranks=3, events=events)
    return on_ranks(calls, 3) | {"events": events}


@pytest.mark.parametrize("name", CASES)
def test_ranks_end_in_the_bits_of_one_process(name, three):
    assert three[name] == [found(fit(name))] * 3


def test_lanes_of_both_sides_are_in_one_table(three):
    seen = results.read(three["events"], 2)
    # what crosses has left before it arrives, and is worked on when it has
    ends = {(i.resource, i.kind, i.batch, i.micro): i for i in seen.intervals}
    for at, batch, micro in ((a, b, m) for a in (0, 1) for b in range(9) for m in range(3)):
        sent = ends[f"uplink {at}", "send", batch, micro]
        made = ends[f"device {at}", "forward", batch, micro]
        used = ends[f"server {at}", "forward", batch, micro]
        assert made.end_s - 1e-3 < sent.end_s < used.start_s + 1e-3  # clocks agree to so much
    table = results.table("x", three["lanes"][0], seen, 1.0)
    assert (table[["upload", "download", "comm amount", "client_forward"]] > 0).all(axis=None)
    assert table["train_loss"].map(len).tolist() == [3, 3]


def test_the_profiler_chooses_for_every_device_and_a_run_that_goes_on_keeps_it(three):
    for first, then, said in three["chosen"]:
        # on such a link the pixels of an epoch are less than the weights up and down, and what was
        # measured on this machine, busy or not, is nothing beside either
        assert first == then == (0,)
        assert "uplink_mbit is" in said
    with pytest.raises(ValueError, match="no machines to measure"):
        fit(**SLOW)


class Fails(torch.nn.Module):
    def forward(self, x):
        if self.training:
            raise ArithmeticError("a unit that fails")
        return x


@pytest.mark.parametrize(("unit", "rank"), [(0, "1|2"), (3, "0")])
def test_a_fault_of_a_device_or_of_a_tail_ends_all(unit, rank):
    made = units()
    made[unit] = torch.nn.Sequential(made[unit], Fails())
    with pytest.raises(RankFailed, match=f"rank ({rank}) raised ArithmeticError: a unit that fai"):
        alkit.fit(made, (X, Y), method="pipelearn", cuts=[2], ranks=3, progress=False)
