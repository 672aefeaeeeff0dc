"""The calls that users make: what they return, and what they refuse."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import set_device
from alkit.delayed import Pipeline, even_cuts, schedule_for, train_epoch
from alkit.delayed.methods import ORDERS
from alkit.delayed.schedules import SHARED
from studies.al.networks import BiLSTM
from studies.common.resnet_cifar import resnet_cifar
from tests.helpers import train_blocks
from tests.unit.delayed.nets import bits, equal, mlp, momentum, pipeline, same, trained, vectors


def test_train_in_one_call():
    blocks = mlp()
    record = train_blocks(blocks, F.cross_entropy, vectors(30), method="ddg", cuts=[2, 4])
    assert record.losses.shape == (30,)
    assert record.losses[-5:].mean() < record.losses[:5].mean()
    assert record.samples == 240
    assert record.timeline.span_s <= record.seconds
    assert blocks[0] is record.pipeline[0].blocks[0], "blocks are trained in place"
    again = train_epoch(record.pipeline, vectors(2), "pipedream")
    assert int(again.pipeline.batches_trained) == 32


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


def test_a_forward_that_is_run_again_does_not_move_running_statistics():
    record = trained(mlp(), 3, vectors(12), "fr")
    moved = [module.blocks[0][1].num_batches_tracked for module in record.pipeline]
    assert moved == [12, 12, 12]


def test_a_model_can_be_placed():
    made = set_device(pipeline(mlp(), 3), ["cpu"] * 3)
    assert same(train_epoch(made, vectors(6), "ddg"), trained(mlp(), 3, vectors(6), "ddg"))


def test_cuts_as_published():
    sizes = {1: [11], 2: [6, 5], 3: [4, 4, 3], 4: [3, 3, 3, 2], 5: [3, 2, 2, 2, 2]}
    for modules, own in (sizes | {6: [2, 2, 2, 2, 2, 1], 11: [1] * 11}).items():
        bounds = [0, *even_cuts(11, modules), 11]
        assert [b - a for a, b in zip(bounds, bounds[1:], strict=False)] == own


def _tied():
    blocks = mlp()
    blocks[4][0].weight = blocks[0][0].weight
    return blocks


def test_tied_parameters_in_one_module_are_fine():
    record = train_epoch(Pipeline(_tied(), F.cross_entropy, [5], momentum), vectors(4), "ddg")
    assert torch.isfinite(record.losses).all()


TWO = vectors(2)
REFUSED = [
    (lambda: even_cuts(3, 4), "4 modules for 3 blocks: give 1 to 3"),
    (lambda: Pipeline(mlp(), F.cross_entropy, [7]), r"cuts \[7\] for 6 blocks"),
    (lambda: Pipeline(mlp(), F.cross_entropy, [2.5]), "a cut falls between blocks"),
    (lambda: Pipeline(mlp(), F.cross_entropy, [3, 2]), "rising"),
    (lambda: Pipeline([], F.cross_entropy), "there are no blocks"),
    (lambda: Pipeline(_tied(), F.cross_entropy, [2]), "modules 0 and 1 share a parameter"),
    (lambda: trained(mlp(), 2, TWO, "dgd"), "unknown method 'dgd'"),
    (lambda: trained(mlp(), 2, TWO, "ddg", "proceses"), "give single, threads, ranks"),
    (lambda: trained(mlp(), 2, TWO, "fr", workers=1), "beside executor 'single': free workers are"),
    (
        lambda: trained(mlp(), 2, TWO, "1f1b", clip=0.0),
        "clip is 0.0: it must be",
    ),
    (lambda: schedule_for("dgd", 2), "unknown method 'dgd'"),
    (lambda: schedule_for("ddg", 0), "stages is 0"),
    (lambda: schedule_for("ddg", 2, 0), "micro is 0"),
    (lambda: schedule_for("ddg", 2, 2), "micro-batches are for 2bw, gpipe, 1f1b"),
    (lambda: schedule_for("2bw", 4, 3), "give at least as many as stages"),
    (lambda: resnet_cifar(21), r"give 6 n \+ 2"),
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
