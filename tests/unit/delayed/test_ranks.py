"""Processes: the same bits as the single executor, for all methods; replicas; signs of life."""

from functools import partial

import pytest
import torch
from torch import nn

from alkit import delayed
from alkit.delayed import METHODS
from alkit.delayed.schedules import SHARED
from tests.helpers import on_ranks
from tests.unit.delayed.nets import bits, equal, mlp, outcome, trained, vectors

BATCHES = 20
RUNS = {
    name: {"micro": 4} if own.accumulates else {}
    for name, own in METHODS.items()
    if name not in SHARED  # see test_own_schedule
}
RUNS["ddg_barrier without a drain"] = {"drain": False}
REPLICATED = ("pipedream", "fr_barrier")


def _found(name, executor="single"):
    """Return what four modules end in."""
    method = name.partition(" ")[0]
    record = trained(mlp(dropout=0.2), 4, vectors(BATCHES), method, executor, **RUNS[name])
    return outcome(record), record.versions


def _without_norm():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]
    return [*hidden, nn.Linear(6, 3)]


def _two_pipelines(method, executor):
    own = _without_norm(), 2, vectors(BATCHES)
    return outcome(trained(*own, method, executor, replicas=2))


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


def _replicas_with_experts(executor):
    own = {"method": "seq", "cuts": [1], "replicas": 2, "optimizer": sgd, "executor": executor}
    record = delayed.train(_with_experts(), nn.functional.cross_entropy, _signed(), **own)
    return bits(record.pipeline)


@pytest.fixture(scope="module")
def four():
    """What four ranks find, one run after the other."""
    return on_ranks(
        {name: partial(_found, name) for name in RUNS}
        | {f"two of {method}": partial(_two_pipelines, method) for method in REPLICATED}
        | {"experts": _replicas_with_experts},
        ranks=4,
        executor="ranks",
    )


@pytest.mark.parametrize("name", sorted(RUNS))
def test_e8_ranks_end_in_the_same_bits(name, four):
    tensors, versions = _found(name)
    assert all(equal(found, tensors) and seen == versions for found, seen in four[name])


@pytest.mark.parametrize("method", REPLICATED)
def test_e19_two_pipelines_are_one_with_the_whole_batch(method, four):
    expected = outcome(trained(_without_norm(), 2, vectors(BATCHES), method))
    half = trained(_without_norm(), 2, [(x[:4], y[:4]) for x, y in vectors(BATCHES)], method)
    for found in four[f"two of {method}"]:
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(found[0], half.losses)


def test_replicas_that_train_other_parameters_add_zeros(four):
    blocks = _with_experts()
    expected = [p for block in blocks for p in block.parameters()]
    optimizer = sgd(expected)
    for x, y in _signed():
        optimizer.zero_grad()
        for half in (slice(4), slice(4, 8)):
            scores = blocks[1](blocks[0](x[half]))
            (nn.functional.cross_entropy(scores, y[half]) / 2).backward()
        optimizer.step()
    for found in four["experts"]:
        for tensor, parameter in zip(found, expected, strict=True):
            torch.testing.assert_close(tensor, parameter.detach(), rtol=0, atol=1e-12)
