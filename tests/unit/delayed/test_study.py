"""Rates are chosen with a seed that does not count, and the test part stays closed."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from alkit.lab import results
from studies.common.study import TUNING_SEED
from studies.delayed import accuracy_study as study


def _recorded(accuracies):
    run = results.Run("23_delay", preset="cpu")
    for (method, modules, lr, seed), value in accuracies.items():
        done = SimpleNamespace(test_acc=value / 100, seconds=1.0)
        done.test_correct = (torch.arange(100) < value).float()
        done.history = pd.DataFrame({"val_acc": [value / 100]})
        study.record(run, study.Case(method, modules, lr, seed), done, "resnet20", "cifar10")
    return pd.DataFrame(run.rows)


def test_rates_are_chosen_with_a_seed_that_does_not_count():
    seq = {(0.1, TUNING_SEED): 60, (0.2, TUNING_SEED): 50, (0.1, 0): 60, (0.1, 1): 62}
    seq[0.2, 1] = 99  # at a rate that was not chosen
    fr = {(0.1, TUNING_SEED): 30, (0.2, TUNING_SEED): 40, (0.3, TUNING_SEED): 20}
    fr |= {(0.2, 0): 40, (0.2, 1): 42}
    frame = _recorded(
        {("seq", 1, *case): value for case, value in seq.items()}
        | {("fr", 4, *case): value for case, value in fr.items()}
    )
    assert study.best_rates(frame) == {("seq", 1): 0.1, ("fr", 4): 0.2}
    assert study.edges(frame).method.tolist() == ["seq"]
    assert set(study.at_chosen_rates(frame).seed) == {0, 1}
    table = study.accuracies(frame).set_index("method")
    assert table.loc["seq", "mean"] == 61
    assert table.loc["fr", ["lr", "n"]].tolist() == [0.2, 2]
    (gap,) = study.gaps(frame).itertuples()
    assert (gap.method, gap.modules, gap.seeds) == ("fr", 4, 2)
    assert gap.points == pytest.approx(20)
    tuning = _recorded({("seq", 1, 0.1, TUNING_SEED): 60})
    assert "accuracy" not in set(tuning.metric), "the test part stays closed"
