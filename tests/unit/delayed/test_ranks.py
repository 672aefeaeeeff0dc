"""Processes: the same bits as the single executor, for all methods; barriers; failures."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from alkit import delayed
from alkit.delayed import METHODS
from alkit.engine import ranks as engine_ranks
from alkit.engine.launch import RankFailed, launch
from tests.helpers import begun_an_hour_ago
from tests.unit.delayed.nets import bits, images, mlp, resnet, trained, vectors

BATCHES = 20
HEARTBEAT_S = 900.0  # a busy machine takes as long for nothing here


def _trained(modules, methods):
    """Train with each method; run by every rank."""
    found = {}
    for method in methods:
        micro = {"micro": 4} if METHODS[method].accumulates else {}
        record = trained(mlp(dropout=0.2), modules, vectors(BATCHES), method, "ranks", **micro)
        found[method] = record.losses, bits(record.pipeline), record.versions
    return found


@pytest.mark.parametrize("modules", [2, 3, 4])
def test_e8_ranks_end_in_the_same_bits(modules):
    methods = sorted(METHODS)
    ranks = launch(_trained, modules, methods, ranks=modules)
    for method in methods:
        micro = {"micro": 4} if METHODS[method].accumulates else {}
        expected = trained(mlp(dropout=0.2), modules, vectors(BATCHES), method, **micro)
        for found in ranks:
            losses, tensors, versions = found[method]
            assert torch.equal(losses, expected.losses), method
            pairs = zip(tensors, bits(expected.pipeline), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), method
            assert versions == expected.versions


def _resnet():
    record = trained(resnet(), 2, images(6), "pipedream", "ranks")
    return record.losses


def test_e8_on_resnet_20():
    expected = trained(resnet(), 2, images(6), "pipedream").losses
    assert all(torch.equal(losses, expected) for losses in launch(_resnet, ranks=2))


def _two_pipelines(method):
    record = trained(_without_norm(), 2, vectors(BATCHES), method, "ranks", replicas=2)
    return record.losses, bits(record.pipeline)


def _without_norm():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
        nn.Linear(6, 3),
    ]


@pytest.mark.parametrize("method", ["pipedream", "fr_barrier"])
def test_e19_two_pipelines_are_one_with_the_whole_batch(method):
    expected = trained(_without_norm(), 2, vectors(BATCHES), method)
    half = trained(_without_norm(), 2, [(x[:4], y[:4]) for x, y in vectors(BATCHES)], method)
    for losses, tensors in launch(_two_pipelines, method, ranks=4):
        torch.testing.assert_close(losses, expected.losses)
        for one, other in zip(tensors, bits(expected.pipeline), strict=True):
            torch.testing.assert_close(one, other)
        assert not torch.allclose(losses, half.losses)


def _without_drain():
    record = trained(mlp(), 3, vectors(9), "ddg_barrier", "ranks", drain=False)
    return bits(record.pipeline)


def test_ranks_without_a_drain():
    expected = bits(trained(mlp(), 3, vectors(9), "ddg_barrier", drain=False).pipeline)
    for found in launch(_without_drain, ranks=3):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class _Slow(nn.Module):
    """Takes so long that whoever does not wait for it is seen."""

    def forward(self, x):
        time.sleep(0.05)
        return x


def _timeline():
    """Return intervals on the clock that all processes of a machine share, not from a barrier."""
    # times of all ranks by the machine's clock, not from a barrier on
    engine_ranks.time = SimpleNamespace(perf_counter=lambda: 0.0)
    return trained([*mlp(5), _Slow()], 3, vectors(8), "fr_barrier", "ranks").timeline.intervals


def test_a_barrier_holds_between_processes():
    """No module's backward of an iteration starts before the iteration's last forward has ended."""
    intervals = launch(_timeline, ranks=3)[0]
    forwards = {i.batch: i.end_s for i in intervals if i.kind == "forward" and i.stage == 2}
    for one in intervals:
        if one.kind == "backward" and one.stage < 2:
            last = forwards.get(one.batch + 2 - one.stage)
            assert last is None or one.start_s > last


def _failing(how):
    import torch.distributed as dist

    def batches():
        for number, batch in enumerate(vectors(200)):
            if number == 5 and dist.get_rank() == 1:
                if how == "raise":
                    raise OSError("disk on fire")
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(3600)
            yield batch

    return trained(mlp(), 3, batches(), "pipedream", "ranks").losses


@pytest.mark.parametrize(
    ("how", "words"), [("raise", "rank 1 raised OSError"), ("kill", "rank 1 died of SIGKILL")]
)
def test_a_rank_that_fails_is_named(how, words):
    """By what it did, not by a missed heartbeat; alkit.launch's tests time the fault."""
    with pytest.raises(RankFailed, match=words):
        launch(_failing, how, ranks=3, heartbeat_s=HEARTBEAT_S)


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


def _replicas_with_experts():
    own = {"method": "seq", "executor": "ranks", "replicas": 2, "optimizer": sgd}
    record = delayed.train(_with_experts(), nn.functional.cross_entropy, _signed(), **own)
    return bits(record.pipeline)


def test_replicas_that_train_other_parameters_add_zeros():
    blocks = _with_experts()
    optimizer = sgd([p for block in blocks for p in block.parameters()])
    for x, y in _signed():
        optimizer.zero_grad()
        for half in (slice(4), slice(4, 8)):
            scores = blocks[1](blocks[0](x[half]))
            (nn.functional.cross_entropy(scores, y[half]) / 2).backward()
        optimizer.step()
    expected = [p for block in blocks for p in block.parameters()]
    for found in launch(_replicas_with_experts, ranks=2):
        pairs = zip(found, expected, strict=False)
        for tensor, parameter in pairs:
            torch.testing.assert_close(tensor, parameter.detach(), rtol=0, atol=1e-12)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
