"""Ranks on simulated devices, one a rank: what travels goes through the host, and keeps its bits.

A rank gets a model of classes that are defined here, so it imports this file, and has sim.
"""

import pytest
import torch
from torch import nn

import alkit
from alkit import dtp, launch
from tests.helpers import full_state
from tests.sim.device import start
from tests.unit.dtp.helpers import made_set
from tests.unit.elastic.helpers import SETTINGS, make_bert, texts, train

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:32], y[:32]), (x[32:40], y[32:40]), (x[40:], y[40:])


class Noted(nn.Module):
    """Sees that a rank trains where it should."""

    expected = "sim"

    def forward(self, x):
        if torch.distributed.is_initialized() and self.training and torch.is_grad_enabled():
            own = torch.distributed.get_rank() if self.expected == "sim" else None
            assert x.device == torch.device(self.expected, own), x.device
        return x


def blocks():
    torch.manual_seed(0)
    return [
        nn.Sequential(Noted(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3))
        for _ in range(3)
    ]


def fitted(method, **options):
    own = {"num_classes": 3} if method == "al_pipeline" else {}
    own |= {"epochs": 2, "batch_size": 8, "progress": False, "lr": 0.01}
    stack = blocks() if method == "al_pipeline" else [*blocks(), nn.Linear(6, 3)]
    return alkit.fit(stack, *PARTS, method=method, **own | options)


def test_associated_learning_ends_as_on_the_cpu():
    """A launch of its own: the model comes back to where it was."""
    here, there = fitted("al_pipeline"), fitted("al_pipeline", ranks=2, device="sim")
    assert torch.equal(here.losses, there.losses)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()
    assert torch.equal(here.test_correct, there.test_correct)
    one, other = full_state(here.model), full_state(there.model)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_delayed_gradients_end_as_on_the_cpu():
    """Inside of ranks that are there already."""
    for here, there in launch(_delayed_on_both):
        assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


def _delayed_on_both():
    return [_delayed(device) for device in ("cpu", "auto")]


def _delayed(device):
    Noted.expected = "cpu" if device == "cpu" else "sim"
    record = fitted("pipedream", cuts=[2], device=device)
    states = [value.cpu() for value in record.model.state_dict().values()]
    return [record.losses, record.test_correct, *states]


def test_target_propagation_ends_as_on_the_cpu():
    records = []
    for options in ({}, {"ranks": 2, "device": ["sim:1", "sim:0"]}):
        net = dtp.network("tiny")
        net.noted = Noted()
        options |= {"iterations": 1, "batch_size": 48, "lr": 1e-3, "progress": False}
        records.append(alkit.fit(net, made_set(), **options))
    here, there = records
    assert torch.allclose(here.losses, there.losses, rtol=1e-5)
    assert torch.equal(here.test_correct, there.test_correct)


def _frozen(moment):
    """Two layers after each epoch; a rank that reads of this function knows the device."""
    return min(2, 2 * moment.evaluation)


def test_elastic_training_ends_as_on_the_cpu():
    """Two stages, and from the first frozen layers on two replicas that read stored features."""
    records = []
    for options in ({"workers": 2}, {"ranks": 2, "device": "sim"}):
        network = make_bert(0.3)
        options |= {"settings": SETTINGS, "epochs": 2, "freeze": _frozen}
        records.append(train(network, texts(), test=texts(), **options))
    here, there = records
    assert torch.allclose(here.losses, there.losses, rtol=1e-12)
    assert torch.equal(here.test_correct, there.test_correct)
    assert all(torch.allclose(t, there.state[name], rtol=1e-9) for name, t in here.state.items())
