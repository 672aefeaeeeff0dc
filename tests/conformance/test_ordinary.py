"""The most ordinary call: a shuffled loader, a smaller last batch, class numbers, defaults."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import WeightedRandomSampler

import alkit
from tests.conformance.families import FAMILIES, N, accuracy, held, loader, net, rows

pytestmark = pytest.mark.filterwarnings("ignore")


@held()
def test_all_samples_are_trained_once_an_epoch(family):
    record = family.fit(net(), loader(), epochs=2)
    assert record.history.samples.tolist() == [N, N]


@held()
def test_the_user_s_network_is_the_record_s(family):
    model = net()
    record = family.fit(model, loader(), lr=0.01)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(rows(9)[0]), record.predict(rows(9)[0]))


@held()
def test_a_trained_network_keeps_its_accuracy(family):
    x, y = rows()
    model = net()
    steps = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    before = accuracy(model(x), y)
    assert before > 0.95
    record = family.fit(model, loader(), lr=1e-9)
    assert accuracy(record.predict(x), y) == pytest.approx(before, abs=0.02)


def test_a_sampler_that_chooses_is_kept_or_refused():
    """Methods that deal or store samples take them all: a loader that says otherwise is no such."""
    chosen = WeightedRandomSampler([1.0] * 10 + [0.0] * (N - 10), 64)
    for family in FAMILIES:
        made = loader(shuffle=False, sampler=chosen)
        if family.method in ("pipelearn", "elastic"):
            with pytest.raises(ValueError, match="loader's WeightedRandomSampler chooses samples"):
                family.fit(net(), made)
        else:
            assert family.fit(net(), made).history.samples.tolist() == [64]


@held()
def test_the_caller_s_default_type_changes_no_bit(family):
    """Nothing that is made before training, or in it, follows it."""
    found, options = [], {"epochs": 2, "batch_size": 16}
    for default in (torch.float32, torch.float64):
        model, parts = net(), (rows(64), rows(8, 1))
        torch.set_default_dtype(default)
        try:
            record = family.fit(model, *parts, **options)
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(record.model.state_dict())
    assert all(map(torch.equal, *(each.values() for each in found)))


@held()
def test_an_augmented_set_is_augmented_or_refused(family):
    plain = alkit.datasets.load("digits").subset(train=60).train
    found = []
    for part in (plain, replace(plain, augment="weak")):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        try:
            found.append(family.fit(network, part, batch_size=20, lr=0.01).losses)
        except ValueError as error:
            found.append(str(error))
    assert "augmented" in found[1] if isinstance(found[1], str) else not torch.equal(*found)
