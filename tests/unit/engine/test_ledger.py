"""The ledger against hand counts: what is saved, counted once, and let go."""

import pytest
import torch
from torch import nn

from alkit import one_hot, to_al, to_bp, train_epoch
from studies.common.ledger import Ledger, counting
from tests.make import tanh_blocks


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


@pytest.mark.parametrize("depth", [1, 3])
def test_a_chain_keeps_an_input_a_layer_until_the_backward(depth):
    """Neither parameters nor buffers are counted."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)], nn.BatchNorm1d(4).eval())
    ledger, size, x = Ledger(model), (depth + 1) * 2 * 4 * 4, torch.randn(2, 4)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with ledger.recording():
        loss = model(x).sum()
    assert (ledger.now, ledger.peak) == (size, size)
    loss.backward()
    assert (ledger.now, ledger.peak) == (0, size)
    found = [p.grad for p in model.parameters()]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _peaks(make, depth, mode, shared, **options):
    model = make(tanh_blocks(depth, 16)[:-1], 4, torch.zeros(2, 16))
    batches = [(torch.randn(8, 16), one_hot(torch.arange(8) % 4, 4)) for _ in range(3)]
    ledgers = [Ledger(model)] * depth if shared else [Ledger(model) for _ in range(depth)]
    if mode == "bp":
        with ledgers[0].recording():
            train_epoch(model, batches, mode)
    else:
        counting(model, ledgers)
        train_epoch(model, batches, mode, **options)
    assert all(ledger.now == 0 for ledger in ledgers)
    return [ledger.peak for ledger in ledgers]


def test_al_keeps_one_layer_s_activations_whatever_the_depth_and_backprop_all():
    peaks = [_peaks(to_al, depth, "al", shared=True)[0] for depth in (2, 4, 8)]
    assert len(set(peaks)) == 1
    two, four, six = (_peaks(to_bp, depth, "bp", shared=True)[0] for depth in (2, 4, 6))
    assert six - four == four - two > 0
    for depth in (2, 4):  # a worker of a pipeline keeps its own layer's
        cuts = list(range(1, depth))
        worker = _peaks(to_al, depth, "al_pipeline", shared=False, cuts=cuts)
        assert worker == _peaks(to_al, depth, "al", shared=False)
