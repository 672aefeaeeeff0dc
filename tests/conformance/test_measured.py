"""What is measured after an epoch is what was trained: by it epochs are chosen and runs stopped."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from tests.conformance.families import FAMILIES, held, sgd

torch.manual_seed(0)
X = torch.randn(64, 8)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
OWN = [each for each in FAMILIES if each.own_loss]  # local rules and split learning have their own


def net(out=3):
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, out)]


def yes(scores, y):
    """A loss of one score for yes or no."""
    return F.binary_cross_entropy_with_logits(scores[:, 0], y.float())


yes.reduction = "mean"


def method(family):
    return family.method


@pytest.mark.parametrize("family", OWN, ids=method)
def test_one_score_for_yes_or_no_is_measured_by_its_loss(family):
    """The highest of one score is always the first, whatever it says."""
    part = X, (X[:, 0] > 0).long()
    record = family.fit(net(1), part, part, part, loss=yes)
    assert "val_acc" not in record.history
    expected = yes(record.predict(X), part[1]).item()
    assert record.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert record.history.val_loss.iloc[-1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", OWN, ids=method)
def test_a_loss_of_columns_is_one_whatever_the_first_batch_holds(family):
    many = (X[:, :3] > 0).float()
    one = many.sum(1) == 1  # as if they were shares of one class
    parts = [(X[one], many[one]), (X[~one], many[~one])]
    record = family.fit(net(), (X, many), parts, loss=nn.BCEWithLogitsLoss())
    assert "val_loss" in record.history
    assert "val_acc" not in record.history


@pytest.mark.parametrize("family", OWN, ids=method)
@pytest.mark.parametrize("ignored", [-100, 2])
def test_labels_that_the_loss_ignores_don_t_count(family, ignored):
    part = Y.clone()
    part[:32] = ignored
    counted = part != ignored
    record = family.fit(
        net(), (X, part), (X, part), (X, part), loss=nn.CrossEntropyLoss(ignore_index=ignored)
    )
    expected = (record.predict(X).argmax(1) == part)[counted].float().mean().item()
    assert record.history.val_acc.iloc[-1] == pytest.approx(expected)
    assert record.metrics["accuracy"] == pytest.approx(expected)
    assert record.test_correct.isnan().equal(~counted)


@held([each for each in FAMILIES if each.method in ("bp", "al", "1f1b", "pipedream", "elastic")])
def test_the_best_weights_are_tested_inside_autocast_too(family):
    """Its cache holds casts of the weights that were there when they were measured last."""
    worse = iter([1.0, 2.0, 3.0])
    own = {"callbacks": [lambda *_: {"own_loss": next(worse)}, alkit.best("own_loss")]}
    own |= {"epochs": 3, "lr": 0.5, "optimizer": sgd, **family.one}
    with torch.autocast("cpu", torch.bfloat16):
        record = family.fit(net(), (X, Y), (X, Y), (X, Y), **own)
        inside = record.predict(X)
    with torch.autocast("cpu", torch.bfloat16):
        again = alkit.evaluate(record.model, (X, Y))
        assert torch.equal(inside, record.predict(X))
    assert record.best_epoch == 1
    assert torch.equal(record.test_correct, again)
    assert record.history.val_acc[0] == again.mean().item() != record.history.val_acc[2]
