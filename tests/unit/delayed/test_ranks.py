"""Processes: the same bits as the single executor, for all methods; replicas; a hang is named."""

import time

import pytest
import torch
from torch import nn

from alkit import delayed
from alkit.delayed import METHODS
from alkit.engine.launch import RankFailed, launch
from tests.helpers import begun_an_hour_ago
from tests.unit.delayed.nets import bits, equal, mlp, outcome, trained, vectors

BATCHES = 20
HEARTBEAT_S = 900.0  # a busy machine takes as long for nothing here


def _trained(modules, executor):
    """Train with each method, and once without a drain; run by every rank."""
    found = {}
    for method in [*sorted(METHODS), "without a drain"]:
        own = {"micro": 4} if method in METHODS and METHODS[method].accumulates else {}
        if method == "without a drain":
            method, own = "ddg_barrier", {"drain": False}
        record = trained(mlp(dropout=0.2), modules, vectors(BATCHES), method, executor, **own)
        found[method, *own] = outcome(record), record.versions
    return found


def test_e8_ranks_end_in_the_same_bits():
    expected = _trained(3, "single")
    for found in launch(_trained, 3, "ranks", ranks=3):
        for method, (tensors, versions) in found.items():
            assert equal(tensors, expected[method][0]), method
            assert versions == expected[method][1]


def _without_norm():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]
    return [*hidden, nn.Linear(6, 3)]


def _two_pipelines(methods):
    own = _without_norm, 2, vectors(BATCHES)
    return [outcome(trained(own[0](), *own[1:], m, "ranks", replicas=2)) for m in methods]


def test_e19_two_pipelines_are_one_with_the_whole_batch():
    methods = ["pipedream", "fr_barrier"]
    ranks = launch(_two_pipelines, methods, ranks=4)
    for at, method in enumerate(methods):
        expected = outcome(trained(_without_norm(), 2, vectors(BATCHES), method))
        half = trained(_without_norm(), 2, [(x[:4], y[:4]) for x, y in vectors(BATCHES)], method)
        for found in ranks:
            torch.testing.assert_close(found[at], expected)
            assert not torch.allclose(found[at][0], half.losses)


def _hanging():
    class Hangs(nn.Module):
        count = 0

        def forward(self, x):
            Hangs.count += 1
            if Hangs.count == 4:
                begun_an_hour_ago()
                time.sleep(3600)
            return x

    return trained([*mlp(3), Hangs()], 2, vectors(9), "fr", "ranks").losses


def test_a_rank_that_hangs_is_named():
    with pytest.raises(RankFailed, match="rank 1 hangs in forward of stage 1"):
        launch(_hanging, ranks=2, heartbeat_s=HEARTBEAT_S)


class _Experts(nn.Module):
    """One of two layers, by the data: in each batch the replicas choose different ones."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        return self.each[int(x[:, 0].sum() > 0)](x)


def _with_experts():
    torch.manual_seed(0)
    return [_Experts().double(), nn.Linear(6, 3).double()]


def _signed():
    found = [(x.double(), y) for x, y in vectors(BATCHES)]
    for x, _ in found:
        x[:, 0] = x[:, 0].abs()
        x[4:, 0] *= -1
    return found


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def _replicas_with_experts():
    own = {"method": "seq", "executor": "ranks", "replicas": 2, "optimizer": sgd}
    record = delayed.train(_with_experts(), nn.functional.cross_entropy, _signed(), **own)
    return bits(record.pipeline)


def test_replicas_that_train_other_parameters_add_zeros():
    blocks = _with_experts()
    expected = [p for block in blocks for p in block.parameters()]
    optimizer = sgd(expected)
    for x, y in _signed():
        optimizer.zero_grad()
        for half in (slice(4), slice(4, 8)):
            scores = blocks[1](blocks[0](x[half]))
            (nn.functional.cross_entropy(scores, y[half]) / 2).backward()
        optimizer.step()
    for found in launch(_replicas_with_experts, ranks=2):
        for tensor, parameter in zip(found, expected, strict=True):
            torch.testing.assert_close(tensor, parameter.detach(), rtol=0, atol=1e-12)
