"""Notebook 00's rows: what they send and hold, by hand; and intervals over seeds."""

import math

import pandas as pd
import pytest

from alkit.data import datasets
from alkit.figures import viz
from studies import axis, axis_tables

CROSSING = [1000, 200, 30]  # bytes at the three borders
COSTS = {(kind, at): 1.0 for kind in ("forward", "backward") for at in range(4)}


def test_bytes_are_those_of_activations_gradients_and_codes():
    batch, code = 2, 4 * axis.LEARNED.code_dim * 2
    for name in ("bp", "ddg", "fr", "pipedream", "dtp"):  # up and down, dtp's targets down
        assert axis.sent_bytes(name, CROSSING, batch) == 2 * sum(CROSSING)
    assert axis.sent_bytes("al_pipeline", CROSSING, batch) == sum(CROSSING) + 3 * code
    assert axis.sent_bytes("1f1b", [1000, 200, 40], batch) == 2 * 1240  # in four parts
    assert axis.sent_bytes("pipelearn", CROSSING, batch) == 2 * 200  # its one border


def test_the_payload_is_what_leaves_each_block():
    data = datasets.load("digits")
    assert axis.payload(data, 32) == [4 * 32 * 16 * 4 * 4, 4 * 32 * 32 * 2 * 2, 4 * 32 * 64]


def test_devices_hold_what_waits_for_its_backward():
    held = {name: axis.held(axis.on_clock(name, COSTS)) for name in axis.ROWS}
    assert held["bp"] == held["al_pipeline"] == held["1f1b"] == held["dtp"] == 1
    assert held["ddg"] == held["fr"] == held["pipedream"] == 4  # the lowest of four modules


def test_idle_time_on_the_clock():
    line = axis.on_clock("bp", COSTS)
    assert axis.idle_of(line, 4) == pytest.approx(0.75)  # one device works at a time
    assert axis.devices("pipelearn") == 2


def test_rates_are_the_best_on_validation_and_the_lower_of_equals():
    rows = [("a", 0.1, 0.9), ("a", 0.01, 0.9), ("a", 1.0, 0.2), ("b", 0.1, 0.5), ("b", 1.0, 0.6)]
    tried = pd.DataFrame(rows, columns=["name", "lr", "val_acc"])
    assert axis.best_rates(tried) == {"a": 0.01, "b": 1.0}


def test_intervals_are_over_seeds():
    rows = [("bp", seed, value) for seed, value in enumerate((90.0, 92.0, 94.0))]
    rows += [("dtp", seed, value) for seed, value in enumerate((89.0, 90.0, 91.0))]
    found = axis_tables.over_seeds(pd.DataFrame(rows, columns=["name", "seed", "accuracy"]))
    assert found.accuracy.tolist() == [92.0, 90.0]
    t = 4.302652729749464  # Student's, 2 degrees of freedom
    assert found.half.bp == pytest.approx(t * 2 / math.sqrt(3))
    dtp = found.loc["dtp"]
    assert (dtp.against_bp, dtp.low, dtp.high) == pytest.approx(
        (-2.0, -2 - t / math.sqrt(3), -2 + t / math.sqrt(3))
    )


def test_the_ten_methods_have_ten_colours():
    assert len({viz.colour(name) for name in axis.ROWS}) == len(axis.ROWS) == 10


def test_the_picture_states_what_it_draws():
    title = axis_tables.picture(list(axis.ROWS)).get_suptitle()
    said = "Three batches, four workers: the AL pipeline takes 0.35 of backprop's time"
    assert title == said
    assert axis_tables.picture(["bp"]).get_suptitle() == "Three batches on four workers, by method"
