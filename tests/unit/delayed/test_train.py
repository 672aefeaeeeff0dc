"""What users call: clipping, cuts, an LSTM that is called with older weights; what is refused."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.delayed import Pipeline, even_cuts, schedule_for, train_epoch
from alkit.delayed.methods import ORDERS
from alkit.delayed.schedules import SHARED
from studies.al.networks import BiLSTM
from tests.unit.delayed.nets import bits, equal, mlp, pipeline, trained, vectors


@pytest.mark.parametrize("method", ORDERS)
def test_gradients_are_clipped_by_the_norm_of_all(method):
    """As the plain loop does it; the same bits on one thread and on threads."""
    own = {"micro": 4, "clip": 0.05} | ({"workers": 2} if method in SHARED else {})
    blocks, batches = (lambda: mlp(4)), vectors(3)
    ends = []
    for executor in ("single", "threads"):
        model = pipeline(blocks(), 4, partial(torch.optim.SGD, lr=0.5))
        train_epoch(model, batches, method, executor, **own)
        ends.append(bits(model))
    assert equal(*ends)
    plain = nn.Sequential(*blocks())
    steps = torch.optim.SGD(plain.parameters(), lr=0.5)
    for x, y in batches:
        steps.zero_grad()
        for a, b in zip(x.split(2), y.split(2), strict=True):
            (F.cross_entropy(plain(a), b) / 4).backward()
        assert nn.utils.clip_grad_norm_(plain.parameters(), 0.05) > 0.05
        steps.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_cuts_as_published():
    sizes = {1: [11], 2: [6, 5], 3: [4, 4, 3], 4: [3, 3, 3, 2], 5: [3, 2, 2, 2, 2]}
    for modules, own in (sizes | {6: [2, 2, 2, 2, 2, 1], 11: [1] * 11}).items():
        bounds = [0, *even_cuts(11, modules), 11]
        assert [b - a for a, b in zip(bounds, bounds[1:], strict=False)] == own


def _tied():
    blocks = mlp()
    blocks[4][0].weight = blocks[0][0].weight
    return blocks


X, Y = torch.randn(64, 32), torch.arange(64) % 3


def uneven():
    """Return four blocks, of which the last costs most by far."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    thin = [nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.BatchNorm1d(32)) for _ in range(3)]
    return [*thin, nn.Sequential(wide, nn.Linear(512, 3))]


def fitted(blocks, method="pipedream", **own):
    own = {"workers": 2, "batch_size": 32, "lr": 0.01, "progress": False} | own
    return alkit.fit(blocks, (X, Y), method=method, **own)


def test_bits_of_balanced_cuts_are_those_of_the_same_cuts_given_by_hand():
    """Nothing was trained, nothing drawn by what was measured."""
    first, drawn = fitted(uneven(), cuts="balanced"), torch.get_rng_state()
    second = fitted(uneven(), cuts=[3])
    assert torch.equal(drawn, torch.get_rng_state())
    assert first.losses.tolist() == second.losses.tolist()
    states = [each.model.state_dict().values() for each in (first, second)]
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


TWO = vectors(2)
REFUSED = [
    (lambda: Pipeline(mlp(), F.cross_entropy, [2.5]), "a cut falls between blocks"),
    (lambda: Pipeline(_tied(), F.cross_entropy, [2]), "modules 0 and 1 share a parameter"),
    (lambda: even_cuts(3, 4), "4 modules for 3 blocks: give 1 to 3"),
    (lambda: trained(mlp(), 2, TWO, "fr", workers=1), "beside executor 'single': free workers are"),
    (lambda: trained(mlp(), 2, TWO, "1f1b", clip=0.0), "clip is 0.0: it must be"),
    (lambda: trained(mlp(), 2, TWO, "pipedream", recompute=True), "pipedream can't take"),
    (lambda: schedule_for("ddg", 2, 2), "micro-batches are for 2bw, gpipe, 1f1b"),
    (lambda: schedule_for("2bw", 4, 3), "give at least as many as stages"),
    (lambda: fitted(uneven(), cuts="balanced", checkpoint="run.pt"), "needs the cuts that it had"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_bad_requests(call, words):
    with pytest.raises(ValueError, match=words):
        call()


class _Head(nn.Linear):
    def forward(self, given):
        return super().forward(given[0].mean(1))


@pytest.mark.parametrize("method", ["seq", "pipedream", "fr"])
def test_a_packed_lstm_runs_with_the_weights_that_it_is_called_with(method):
    """So its step is that of backprop."""
    sgd = partial(torch.optim.SGD, lr=0.1)
    blocks = nn.ModuleList([BiLSTM(4, 3), _Head(6, 3)]).double()
    mask = torch.arange(6) < torch.tensor([[6], [4], [3], [2], [5]])
    x, y = (torch.randn(5, 6, 4, dtype=torch.float64), mask), torch.tensor([0, 1, 2, 0, 1])
    twin = copy.deepcopy(blocks)
    F.cross_entropy(twin[1](twin[0](x)), y).backward()
    sgd(twin.parameters()).step()
    train_epoch(Pipeline(blocks, F.cross_entropy, [1], sgd), [(x, y)], method)
    close = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(blocks.state_dict(), twin.state_dict(), **close)
