"""Notebook 52's runs and tables: what a run opens and records, rates and contrasts of the arms."""

import logging

import pandas as pd
import pytest
import torch

from alkit.records import results
from alkit.records.packed import pack
from studies.common.study import TUNING_SEED
from studies.dtp import runs as training
from studies.dtp import tables
from tests.unit.dtp.helpers import made_set


@pytest.fixture(scope="module")
def data():
    return made_set()


def recorded(data, name, seed, **changes):
    run = results.Run("52_training")
    made = training.trained(name, "tiny", data, seed, iterations=1, epochs=1, **changes)
    training.record(run, name, seed, made, data, lr=changes.get("lr"))
    return made, pd.DataFrame(run.rows)


def test_the_tuning_seed_leaves_the_test_part_closed(data):
    options = {"lr": 0.02, "compare_every": 1}
    (_, tuned), (made, counted) = (recorded(data, "dtp", seed, **options) for seed in (100, 0))
    assert set(counted.metric) - set(tuned.metric) == {"accuracy", "correct"}
    assert (tuned.lr == 0.02).all()
    assert "angle" in set(tuned.metric)
    row = counted.set_index("metric").loc["val_accuracy"]
    assert row.value == pytest.approx(100 * made.history.val_acc.iloc[-1])
    assert row.n == len(data.validation)
    assert TUNING_SEED == 100


def test_a_rate_is_recorded_if_it_was_given_and_a_run_that_diverges_says_so(data, caplog):
    assert "lr" not in recorded(data, "bp", 0)[1]
    with caplog.at_level(logging.WARNING):
        made, rows = recorded(data, "bp", 0, lr=1e30)
    assert made is None
    assert rows[["metric", "value", "lr"]].values.tolist() == [["diverged", True, 1e30]]


@pytest.mark.parametrize("name", tables.ARMS)
def test_arms_take_backprop_s_weights_and_one_length_of_step(data, name):
    """One step at lr: the last block's, whose gradient all arms share, moves equally far."""
    one = data.subset(train=30)  # one batch
    options = {"epochs": 1, "iterations": 1, "weight_decay": 0.0, "lr": 0.01, "beta": 0.5}
    own, bp = (training.trained(each, "tiny", one, 0, **options) for each in (name, "bp"))
    own, bp = own.model.state_dict(), bp.model.state_dict()
    last = "blocks.3.pieces.1.weight"
    torch.testing.assert_close(own[last], bp[last], rtol=1e-5, atol=1e-6)
    first = "blocks.0.pieces.0.weight"
    assert torch.allclose(own[first], bp[first], rtol=1e-6, atol=1e-8) == (name == "bp")


# ---- tables of made records ----


def row(method, metric, value, seed, lr=0.1):
    labels = {"data": "cifar10", "model": "tiny", "method": method, "seed": seed, "n": 200}
    return labels | {"metric": metric, "value": value, "lr": lr}


def opened(method, rights, lr=0.1):
    found = []
    for seed, right in enumerate(rights):
        values = {"accuracy": right / 2, "correct": pack(torch.arange(200) < right)}
        values |= {"diverged": False, "train_s": 60.0}
        found += [row(method, metric, value, seed, lr) for metric, value in values.items()]
    return found


@pytest.fixture(scope="module")
def rows():
    found = []
    for lr, value in ((0.05, 48.0), (0.1, 50.0), (0.2, 49.0)):
        found += [row(name, "val_accuracy", value, TUNING_SEED, lr) for name in ("bp", "dtp")]
    found += opened("bp", [180, 182, 181, 183, 180]) + opened("dtp", [180, 181, 181, 184, 180])
    found += opened("dfa", [160, 161, 162, 161, 160]) + opened("shallow", [90, 90, 91, 90, 89])
    return pd.DataFrame(found)


def test_the_table_of_arms(rows):
    table = tables.arms(rows).set_index("method")
    assert list(table.index) == ["bp", "dtp", "dfa", "shallow"]
    assert list(table.n) == [5] * 4
    assert table.grid["dtp"] == "0.05, 0.1, 0.2"
    assert table.round(0).lr["dtp"] == "0.1"  # rates outlive a table's round
    assert table.accuracy["bp"] == pytest.approx(90.6)
    assert table["above shallow, points (n)"]["bp"].startswith("+45.60 [")
    assert table["above shallow, points (n)"]["shallow"] == "-"
    assert table.minutes["bp"] == 1
    assert tables.arms(pd.DataFrame()).empty


def test_contrasts_named_beforehand(rows):
    gaps = tables.contrast_gaps(rows)
    assert [key[2] for key in gaps] == ["dtp - bp", "dtp_exact - bp", "dtp - dfa", "dtp - fa"]
    assert {key[:2] for key in gaps} == {("cifar10", "tiny")}
    said = tables.contrasts(gaps)
    assert list(said.verdict) == ["equal", "undecided", "ahead", "undecided"]
    assert not tables.contrast_gaps(pd.DataFrame())
    assert not len(tables.contrasts({}))


def test_the_chosen_rate(rows):
    assert tables.chosen_rate(rows, "cifar10", "dtp") == 0.1
    with pytest.raises(ValueError, match="no rate has been chosen for fa on cifar10, tiny: run"):
        tables.chosen_rate(rows, "cifar10", "fa")
    with pytest.raises(ValueError, match="no rate has been chosen"):
        tables.chosen_rate(pd.DataFrame(), "cifar10", "fa")
    assert not len(tables.edges(rows))
