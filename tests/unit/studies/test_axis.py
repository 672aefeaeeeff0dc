"""Notebook 15's rows: what they send, hold and keep, by hand."""

import pandas as pd
import pytest
import torch
from torch import nn

from alkit.data.parts import DataSet, Part
from studies.all_methods import memory as axis_memory
from studies.all_methods import runs
from studies.all_methods import tables as axis_tables

CROSSING = [1000, 200, 30]  # bytes at the three borders
COSTS = {(kind, at): 1.0 for kind in ("forward", "backward") for at in range(4)}
COSTS |= {(kind, at): 0.0 for kind in ("update", "learn", "target") for at in range(4)}


def test_bytes_are_those_of_activations_gradients_and_codes_that_leave_a_block():
    batch, code = 2, 4 * runs.LEARNED.code_dim * 2
    for name in ("bp", "ddg", "fr", "pipedream", "dtp"):  # up and down, dtp's targets down
        assert runs.sent_bytes(name, CROSSING, batch) == 2 * sum(CROSSING)
    assert runs.sent_bytes("al_pipeline", CROSSING, batch) == sum(CROSSING) + 3 * code
    assert runs.sent_bytes("1f1b", [1000, 200, 40], batch) == 2 * 1240  # in four parts
    assert runs.sent_bytes("pipelearn", CROSSING, batch) == 2 * 200  # its one border


def test_one_device_works_at_a_time_in_backprop():
    assert runs.idle_of(runs.on_clock("bp", COSTS), 4) == pytest.approx(0.75)
    assert runs.devices("pipelearn") == 2


def test_a_seed_counts_once():
    runs_of = {"one": ("bp",), "two": ("dtp",), "all": ("bp", "dtp")}
    rows = [
        {"run": run, "method": method, "seed": 0, "metric": "accuracy", "value": value}
        for value, (run, methods) in enumerate(runs_of.items())
        for method in methods
    ]
    recorded = pd.DataFrame(rows)
    assert axis_tables.accuracies(recorded).accuracy.to_dict() == {"bp": 0, "dtp": 1}


WIDE, BATCH = 512, 4
BLOCK = 4 * (WIDE * WIDE + WIDE)  # bytes of a linear block's weights


@pytest.fixture
def wide(monkeypatch):
    """Four linear blocks whose weights dwarf what a batch keeps."""
    blocks = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.ELU()) for _ in range(3)]
    monkeypatch.setattr(axis_memory, "network", lambda *_: [*blocks, nn.Linear(WIDE, 3)])
    part = Part(torch.randn(8, WIDE), torch.arange(8) % 3, 3)
    return DataSet("wide", part, part, part, 3, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "copies"),
    # weights, gradient, Adam's two; stashed versions; two blocks a device; a feedback with momentum
    [("bp", 4), ("1f1b", 4), ("elastic", 4), ("fr", 4), ("ddg", 7), ("pipelearn", 8), ("dtp", 7)],
)
def test_copies_of_the_weights_are_the_methods(wide, name, copies):
    found = axis_memory.peak_bytes(name, wide, BATCH)
    assert found == pytest.approx(copies * BLOCK, rel=0.02)
