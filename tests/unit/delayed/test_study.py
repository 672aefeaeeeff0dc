"""Fits, cases, chosen rates, divergence, directions and the drawing."""

from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from alkit import fit
from alkit.data import datasets
from alkit.delayed import Pipeline, even_cuts
from alkit.lab import results
from studies.common.resnet_cifar import resnet_cifar
from studies.common.study import TUNING_SEED
from studies.delayed import accuracy_study as study
from studies.delayed.recursion import recursion
from tests.unit.delayed.nets import mlp, momentum, pipeline, vectors


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits").subset(train=320, validation=100, test=100)


def _pipeline(lr=0.05, modules=2):
    torch.manual_seed(0)
    units = resnet_cifar(8, 10, width=4, channels=1)
    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9)
    return Pipeline(units, F.cross_entropy, even_cuts(len(units), modules), sgd)


def test_a_run_that_diverges_says_so(digits):
    with pytest.raises(FloatingPointError, match="loss"):
        fit(_pipeline(1e6), digits, epochs=3, batch_size=32, progress=False)


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


def test_contrasts_are_those_of_a_number_of_modules():
    points = {("seq", 1): 80, ("fr", 3): 70, ("pipedream", 3): 75, ("fr", 11): 50}
    points = {(*case, 0.1, seed): value for case, value in points.items() for seed in range(5)}
    found = study.contrasts(_recorded(points)).set_index(["modules", "contrast"])
    assert found.loc[(3, "fr - seq"), "points (n)"].startswith("-10.00")
    assert found.loc[(3, "fr - pipedream"), "points (n)"].startswith("-5.00")
    assert found.loc[(11, "fr - seq"), "points (n)"].startswith("-30.00")
    assert (11, "pipedream - seq") not in found.index  # no runs yet
    assert found.loc[(3, "fr - seq"), "verdict"] == "behind"


def test_cases():
    made = study.cases(["fr"], [2, 3], [0.1, 0.2], [0])
    assert [case.name for case in made][:2] == ["fr K=2 lr=0.1 seed=0", "fr K=2 lr=0.2 seed=0"]
    chosen = study.cases(["fr"], [2], [], [0, 1], {("fr", 2): 0.05})
    assert [case.lr for case in chosen] == [0.05, 0.05]
    with pytest.raises(ValueError, match="no rate has been chosen for fr with 2 modules"):
        study.cases(["fr"], [2], [], [0])
    assert study.best_rates(pd.DataFrame()) == {}


def _directions(pipeline, batches, method):
    """Return each batch's cosines with true backprop's gradients and their lengths' ratios."""
    rows = []

    def watch(batch, found, true):
        flat = [[torch.cat([g.flatten() for g in own]) for own in each] for each in (found, true)]
        for one, other in zip(*flat, strict=True):
            rows.append([F.cosine_similarity(one, other, dim=0), one.norm() / other.norm()])

    recursion(pipeline, batches, method, watch=watch)
    return torch.tensor(rows).reshape(-1, len(pipeline), 2).unbind(2)


@pytest.mark.parametrize("method", ["pipedream", "fr"])
def test_directions_are_true_at_frozen_weights(method):
    frozen = pipeline(mlp(), 3, lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    cosines, lengths = _directions(frozen, vectors(6), method)
    assert cosines.numel() == 18
    assert cosines.min() > 1 - 1e-6
    assert (lengths - 1).abs().max() < 1e-5
    moving, _ = _directions(pipeline(mlp(), 3, momentum), vectors(12), method)
    assert moving[5:, 0].median() < 0.999
