"""Notebook 52's runs and tables: what a run opens and records, its rates, its contrasts."""

import logging

import pandas as pd
import pytest
import torch

from alkit.records import results
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
    (_, tuned), (made, counted) = (recorded(data, "dtp", seed, lr=0.02) for seed in (100, 0))
    assert set(counted.metric) - set(tuned.metric) == {"accuracy"}
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


@pytest.mark.parametrize("name", [name for name in tables.VARIANTS if name != "dtp_exact"])
def test_variants_take_backprop_s_weights_and_one_length_of_step(data, name):
    """One step at lr: the last block's, whose gradient all variants share, moves equally far."""
    one = data.subset(train=30)  # one batch
    options = {"epochs": 1, "iterations": 1, "weight_decay": 0.0, "lr": 0.01, "beta": 0.5}
    own, bp = (training.trained(each, "tiny", one, 0, **options) for each in (name, "bp"))
    own, bp = own.model.state_dict(), bp.model.state_dict()
    last = "blocks.3.pieces.1.weight"
    torch.testing.assert_close(own[last], bp[last], rtol=1e-5, atol=1e-6)
    first = "blocks.0.pieces.0.weight"
    assert torch.allclose(own[first], bp[first], rtol=1e-6, atol=1e-8) == (name == "bp")


# ---- tables of made records ----
