"""Recomputation inside a block changes no bit: the same masks, the same weights."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.conformance.families import FAMILIES, flat, held, rows


class Inner(nn.Module):
    """Layers whose inputs alone are kept for the backward, if that is asked for."""

    def __init__(self, kind: str, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(8, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8)
        )
        self.kind = kind

    def forward(self, x):
        if self.kind == "kept" or not self.training:
            return self.layers(x)
        if self.kind == "nested":
            return checkpoint(self._twice, x, use_reentrant=False)
        return checkpoint(self.layers, x, use_reentrant=self.kind == "reentrant")

    def _twice(self, x):
        x = checkpoint(self.layers[:2], x, use_reentrant=False)
        return checkpoint(self.layers[2:], x, use_reentrant=False)


def trained(family, kind, dropout):
    torch.manual_seed(0)
    blocks = [nn.Linear(8, 8), Inner(kind, dropout), Inner(kind, dropout), nn.Linear(8, 3)]
    record = family.fit(blocks, rows(70), lr=0.05, batch_size=16, epochs=2)
    return record.history.loss.tolist(), flat(nn.ModuleList(blocks))


@held()
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["recomputed", "nested", "reentrant"])
def test_what_is_recomputed_is_what_was_computed(family, kind, dropout):
    if family.method == "dtp":
        pytest.skip("it has no inverse")
    if kind == "reentrant" and family.method not in ("bp", "elastic", "pipelearn"):
        pytest.skip("torch's reentrant ones want an input with a gradient, and add to .grad alone")
    expected, found = trained(family, "kept", dropout), trained(family, kind, dropout)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


@pytest.mark.filterwarnings("ignore")  # torch's own, in passing
@held([each for each in FAMILIES if each.method.startswith(("al", "local"))])
def test_a_block_that_would_learn_nothing_is_named(family):
    with pytest.raises(ValueError, match="use_reentrant=True"):
        trained(family, "reentrant", 0.0)


@held()
def test_no_worker_asks_for_the_state_of_the_process_s_generator(family, monkeypatch):
    """It is read under two locks, torch's and the interpreter's, and two threads that read it at
    the same time may wait for each other for ever. Noise of a block needs none of it."""
    if family.method == "dtp":
        pytest.skip("it has no inverse")
    here, real, asking = threading.current_thread(), torch.get_rng_state, set()

    def asked():
        asking.add(threading.current_thread())
        return real()

    monkeypatch.setattr(torch, "get_rng_state", asked)
    trained(family, "recomputed", 0.5)
    assert asking <= {here}
