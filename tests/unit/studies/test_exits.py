"""Exits agree with predict, samples leave where they should, costs grow with depth."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from alkit import fit, to_al
from alkit.data import datasets
from studies.al import exits
from tests.unit.al.helpers import convnet


@pytest.fixture(scope="module")
def trained():
    data = datasets.load("digits").subset(train=300)
    torch.manual_seed(0)
    model = to_al(convnet(widths=(8, 8, 8)), 10, data.train.x[:2])
    fit(model, data, epochs=2, progress=False)
    return model, data


def test_scores_are_those_of_predict_and_costs_grow(trained):
    model, data = trained
    found = exits.scores(model, data.test, batch_size=100)
    assert found.shape == (3, len(data.test), 10)
    for depth in (1, 2, 3):
        torch.testing.assert_close(found[depth - 1], model.predict(data.test.x, depth))
    first, second, third = exits.costs(model, data.test.x[:1])
    assert 0 < first < second < third
    assert third > 1
    # 1 is the network that asks its last exit alone
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model.eval().predict(data.test.x[:1])
    alone = counted.get_total_flops()
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model.predict(data.test.x[:1], 1)
    assert alone * first == pytest.approx(counted.get_total_flops())


COSTS = [1.0, 2.0, 4.0]


def _made():
    # exit 1 is sure of sample 0 and wrong about it; exit 2 of samples 0 and 1; exit 3 of all
    scores = torch.zeros(3, 3, 4)
    for depth, sample, label in ((0, 0, 1), (1, 0, 0), (1, 1, 1), (2, 0, 0), (2, 1, 3), (2, 2, 2)):
        scores[depth, sample, label] = 20.0
    return scores, torch.tensor([0, 1, 2])


def test_a_sample_leaves_at_the_first_exit_that_is_sure():
    scores, labels = _made()
    left = exits.leave(scores, labels, COSTS, 0.5)
    assert left.depth.tolist() == [1, 2, 3]
    assert left.correct.tolist() == [0.0, 1.0, 1.0]
    assert left.cost == pytest.approx((1 + 2 + 4) / 3)
    assert left.counts(3) == [1, 1, 1]
    assert exits.leave(scores, labels, COSTS, 0.0).counts(3) == [0, 0, 3]
    table = exits.sweep(scores, labels, COSTS, [0.0, 0.5])
    assert table.cost.tolist() == pytest.approx([4.0, 7 / 3])
    assert table.exit_1.tolist() == [0, 1]
    # a high temperature makes the first exits unsure
    hot = exits.leave(scores, labels, COSTS, 0.5, temperatures=[100.0, 100.0, 1.0])
    assert hot.counts(3) == [0, 0, 3]


@pytest.mark.parametrize("made", [3, 0.03])  # AL's decoded codes differ by little: below 0.1
def test_calibration_finds_the_temperature_that_made_the_labels(made):
    generator = torch.Generator().manual_seed(0)
    scores = 4 / 3 * made * torch.randn(1, 4000, 5, generator=generator)
    labels = torch.multinomial((scores[0] / made).softmax(1), 1, generator=generator)[:, 0]
    assert exits.calibrated(scores, labels)[0] == pytest.approx(made, rel=0.15)
