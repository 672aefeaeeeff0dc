"""Exits agree with predict, samples leave where they should, costs grow with depth."""

import pytest
import torch

from alkit import fit, to_al
from alkit.al import exits
from alkit.data import datasets
from alkit.models.convnet import convnet
from studies.dashboards import ExitDashboard


@pytest.fixture(scope="module")
def trained():
    data = datasets.load("digits").subset(train=300)
    torch.manual_seed(0)
    model = to_al(convnet(widths=(8, 8, 8)), 10, data.train.x[:2])
    fit(model, data, epochs=2, progress=False)
    return model, data


def test_scores_are_those_of_predict(trained):
    model, data = trained
    found = exits.scores(model, data.test, batch_size=100)
    assert found.shape == (3, len(data.test), 10)
    for depth in (1, 2, 3):
        torch.testing.assert_close(found[depth - 1], model.predict(data.test.x, depth))


def _made():
    # exit 1 is sure of sample 0 and wrong about it; exit 2 of samples 0 and 1; exit 3 of all
    sure, unsure = 20.0, 0.0
    scores = torch.zeros(3, 3, 4)
    scores[0, 0, 1], scores[0, 1, 2], scores[0, 2, 2] = sure, unsure, unsure
    scores[1, 0, 0], scores[1, 1, 1] = sure, sure
    scores[2, 0, 0], scores[2, 1, 3], scores[2, 2, 2] = sure, sure, sure
    return scores, torch.tensor([0, 1, 2])


def test_a_sample_leaves_at_the_first_exit_that_is_sure():
    scores, labels = _made()
    left = exits.leave(scores, labels, [1.0, 2.0, 4.0], 0.5)
    assert left.depth.tolist() == [1, 2, 3]
    assert left.correct.tolist() == [0.0, 1.0, 1.0]
    assert left.cost == pytest.approx((1 + 2 + 4) / 3 / 4)
    assert left.counts(3) == [1, 1, 1]


def test_the_ends_of_the_thresholds():
    scores, labels = _made()
    assert exits.leave(scores, labels, [1.0, 2.0, 4.0], 0.0).counts(3) == [0, 0, 3]
    table = exits.sweep(scores, labels, [1.0, 2.0, 4.0], [0.0, 0.5])
    assert table.cost.tolist() == pytest.approx([1.0, 7 / 12])
    assert table.exit_1.tolist() == [0, 1]
    # a high temperature makes the first exits unsure
    hot = exits.leave(scores, labels, [1.0, 2.0, 4.0], 0.5, temperatures=[100.0, 100.0, 1.0])
    assert hot.counts(3) == [0, 0, 3]


def test_entropy_is_a_share_of_the_largest():
    found = exits.entropies(torch.stack([torch.zeros(2, 5), 100 * torch.eye(5)[:2]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_costs_grow_and_hold_what_the_exits_below_took(trained):
    model, data = trained
    first, second, third = exits.costs(model, data.test.x[:1])
    assert 0 < first < second < third
    # 8 x 8 places, 3 x 3 x 1 weights, 8 channels, 2 operations each
    assert first > 64 * 9 * 8 * 2


def test_calibration_finds_the_temperature_that_made_the_labels():
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(1, 4000, 5, generator=generator)
    labels = torch.multinomial((scores[0] / 3).softmax(1), 1, generator=generator)[:, 0]
    assert exits.calibrated(scores, labels)[0] == pytest.approx(3, rel=0.15)


def test_errors():
    scores, labels = _made()
    with pytest.raises(ValueError, match=r"threshold is 1\.5"):
        exits.leave(scores, labels, [1.0, 2.0, 4.0], 1.5)
    with pytest.raises(ValueError, match="2 costs for 3 exits"):
        exits.leave(scores, labels, [1.0, 2.0], 0.5)


def test_dashboard():
    scores, labels = _made()
    dashboard = ExitDashboard(scores, labels, [1.0, 2.0, 4.0])
    dashboard.threshold.value = 0.5
    assert dashboard.left.counts(3) == [1, 1, 1]
    assert "alkit-ready" in dashboard.report.value
    assert bytes(dashboard.picture.value).startswith(b"\x89PNG")
    dashboard.threshold.value = 0.0
    assert dashboard.left.cost == 1.0
