"""Any list of blocks trains elastically: one unit a layer between the first and the last."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.elastic import Network
from tests.unit.elastic.helpers import train

x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (96,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:64], y[:64]), (x[64:80], y[64:80]), (x[80:], y[80:])
LAYERS = 4


def blocks(dropout=0.2):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout)) for _ in range(LAYERS)]
    return [nn.Linear(6, 6), *hidden, nn.Linear(6, 3)]


def fitted(model=None, **options):
    options = {"epochs": 4, "batch_size": 16, "lr": 0.01, "progress": False} | options
    return alkit.fit(model or blocks(), *PARTS, method="elastic", **options)


def test_layers_freeze_one_by_one_if_it_is_asked_for():
    assert fitted().details.layouts[-1].frozen == 0
    record = fitted(freeze="schedule")
    frozen = record.details.layouts[-1].frozen
    assert 0 < frozen < LAYERS + 1
    assert record.model.frozen == frozen
    assert all(p.requires_grad for p in record.model.parameters())  # blocks learn on as they came
    alkit.fit(record.model, PARTS[0], epochs=1, batch_size=16, progress=False)
    units = record.model.units
    active = [all(p.requires_grad for p in unit.parameters()) for unit in units]
    assert active == [False] * (1 + frozen) + [True] * (LAYERS + 1 - frozen)
    assert len(record.test_correct) == 16


def test_units_a_layer_may_be_three():
    units = [nn.Linear(6, 6) for _ in range(7)] + [nn.Linear(6, 3)]
    network = Network(units, 2, F.cross_entropy, units_a_layer=3)
    assert [network.layer_of(unit) for unit in range(8)] == [None, 0, 0, 0, 1, 1, 1, None]
    record = train(network, PARTS[0], epochs=3, batch_size=16)
    assert network.frozen == record.layouts[-1].frozen > 0


def test_a_loss_of_one_s_own_and_what_does_not_fit():
    smooth = lambda out, y: F.cross_entropy(out, y, label_smoothing=0.3)  # noqa: E731
    assert not torch.equal(fitted(epochs=1).losses, fitted(epochs=1, loss=smooth).losses)
    two = [nn.Linear(6, 6), nn.Linear(6, 3)]
    with pytest.raises(ValueError, match="freeze is given, and of 2 blocks.*give three or"):
        fitted(two, freeze="schedule")
    assert fitted(two, freeze="none").history.frozen.max() == 0
    with pytest.raises(ValueError, match="the network has its own"):
        fitted(Network.from_blocks(blocks(), F.cross_entropy), loss=smooth)
