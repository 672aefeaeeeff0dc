"""Learning-rate schedules against the publication's numbers, on every optimiser."""

import math

import pytest
import torch
from torch import nn

from alkit import BPModel
from alkit.engine.rates import rate_at, rates, scheduled
from tests.helpers import WIDTH, dense_model


def test_cosine_of_the_publication_worked_by_hand():
    found = [rate_at(1e-4, "cosine", epoch, 4, 0.1) for epoch in range(4)]
    q = [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    assert found == pytest.approx([1e-4 * each + 1e-5 * (1 - each) for each in q], rel=1e-12)
    assert found[0] == 1e-4
    last = rate_at(1e-4, "cosine", 199, 200, 0.1)
    assert 1e-5 < last < 1.001e-5


def test_torch_agrees_on_cosine():
    weights = [nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(weights, lr=0.3)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7, eta_min=0.03)
    for epoch in range(7):
        assert rate_at(0.3, "cosine", epoch, 7, 0.1) == pytest.approx(oracle.get_last_lr()[0])
        optimizer.step()
        oracle.step()


def test_constant_is_exactly_the_base():
    assert {rate_at(2.5e-4, "constant", epoch, 20, 0.1) for epoch in range(20)} == {2.5e-4}


def test_both_optimisers_of_every_layer_keep_their_ratio():
    model = dense_model(3)
    model.set_lr("ae", 4e-2)
    with scheduled(model, "cosine", 4, 0.1) as start_epoch:
        assert start_epoch(2) == pytest.approx(0.55e-2)
        for layer in model:
            for group, base in (("enc", 1e-2), ("ae", 4e-2)):
                (held,) = layer.optimizers[group].param_groups
                assert held["lr"] == pytest.approx(0.55 * base)


def test_backprop_keeps_the_ratio_of_its_parameter_groups():
    def grouped(parameters, lr):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 2 * lr}], lr=lr)

    model = BPModel([nn.Linear(WIDTH, 2)], lr=0.1, optimizer=grouped)
    assert rates(model) == {"optimizer.0": 0.1, "optimizer.1": 0.2}
    with scheduled(model, "cosine", 2, 0.0) as start_epoch:
        assert start_epoch(1) == pytest.approx(0.05)
        assert list(rates(model).values()) == pytest.approx([0.05, 0.1])


def test_base_rates_come_back_also_after_an_error():
    model = dense_model(2)
    base = rates(model)
    with pytest.raises(KeyError, match="halfway"):
        _fail_halfway(model)
    assert rates(model) == base == dict.fromkeys(["0.enc.0", "0.ae.0", "1.enc.0", "1.ae.0"], 1e-2)


def _fail_halfway(model):
    base = rates(model)
    with scheduled(model, "cosine", 3, 0.1) as start_epoch:
        start_epoch(2)
        assert rates(model) != base
        raise KeyError("halfway")


@pytest.mark.parametrize(
    ("schedule", "end_factor", "message"),
    [
        ("cosinus", 0.1, "unknown schedule 'cosinus': give constant or cosine"),
        ("cosine", -0.1, "end_factor is -0.1: it must be finite and not negative"),
        ("cosine", math.nan, "end_factor is nan"),
        ("cosine", math.inf, "end_factor is inf"),
    ],
)
def test_bad_schedules(schedule, end_factor, message):
    with (
        pytest.raises(ValueError, match=message),
        scheduled(dense_model(1), schedule, 3, end_factor),
    ):
        pass
