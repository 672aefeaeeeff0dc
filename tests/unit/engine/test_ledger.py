"""The ledger against hand counts: what is saved, counted once, and let go."""

import pytest
import torch
from torch import nn

from alkit import one_hot, to_al, to_bp, train_epoch
from alkit.engine.ledger import Ledger


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


def _blocks(depth, width=16):
    return [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]


def _batches(width=16):
    y = one_hot(torch.arange(8) % 4, 4)
    return [(torch.randn(8, width), y) for _ in range(3)]


def _peaks(make, depth, mode, shared, **options):
    torch.manual_seed(0)
    model = make(_blocks(depth), 4, torch.zeros(2, 16))
    stages = 1 if mode == "bp" else depth
    ledgers = [Ledger(model)] * stages if shared else [Ledger(model) for _ in range(stages)]
    train_epoch(model, _batches(), mode, ledgers=ledgers, **options)
    assert all(ledger.now == 0 for ledger in ledgers)
    return [ledger.peak for ledger in ledgers]


def test_al_keeps_one_layer_s_activations_whatever_the_depth():
    peaks = [_peaks(to_al, depth, "al", shared=True)[0] for depth in (1, 2, 4, 8)]
    assert len(set(peaks[1:])) == 1


def test_backprop_keeps_every_block_s_activations():
    one, two, four = (_peaks(to_bp, depth, "bp", shared=True)[0] for depth in (2, 4, 6))
    assert four - two == two - one > 0


def test_a_pipeline_worker_keeps_its_own_layer_s():
    for depth in (2, 4):
        peaks = _peaks(to_al, depth, "al_pipeline", shared=False, cuts=list(range(1, depth)))
        alone = _peaks(to_al, depth, "al", shared=False)
        assert peaks == alone


def test_a_ledger_a_stage():
    model = to_al(_blocks(2), 4, torch.zeros(2, 16))
    with pytest.raises(ValueError, match="1 ledgers for 2 stages"):
        train_epoch(model, _batches(), "al", ledgers=[Ledger()])
