"""The ledger against hand counts: what is saved, counted once, and let go."""

import pytest
import torch
from torch import nn

from alkit.ledger import Ledger


def test_a_linear_layer_keeps_its_input_until_the_backward():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    ledger = Ledger(layer)
    with ledger.recording():
        loss = layer(x).sum()
    assert (ledger.now, ledger.peak) == (5 * 4 * 4, 5 * 4 * 4)
    loss.backward()
    assert (ledger.now, ledger.peak) == (0, 5 * 4 * 4)


def test_a_storage_counts_once_with_all_its_views():
    x = torch.randn(6, 4, requires_grad=True)
    ledger = Ledger()
    with ledger.recording():
        kept = [x.exp() * x, x[:2] * x[4:]]
    size = 6 * 4 * 4
    assert ledger.now == 2 * size  # x and exp(x)
    kept.pop(0)
    assert ledger.now == size
    kept.clear()
    assert ledger.now == 0


def test_parameters_and_buffers_are_not_counted():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    everything, ours = Ledger(), Ledger(model)
    for ledger in (everything, ours):
        with ledger.recording():
            loss = model(x).sum()
        loss.backward()
    assert ours.peak < everything.peak


def test_gradients_are_the_same_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(5, 4)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with Ledger(model).recording():
        loss = model(x).square().sum()
    loss.backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("depth", [1, 3])
def test_a_chain_keeps_an_input_a_layer(depth):
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)])
    ledger = Ledger(model)
    with ledger.recording():
        loss = model(torch.randn(2, 4)).sum()
    assert ledger.peak == depth * 2 * 4 * 4
    del loss
    assert ledger.now == 0
