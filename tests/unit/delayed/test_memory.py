"""Bytes that runs really keep: ResNet-20 at batch 128 against the published table."""

import pytest
import torch
import torch.nn.functional as F

from alkit.delayed import Pipeline, even_cuts, train_epoch
from studies.common.ledger import Ledger, counting
from studies.common.resnet_cifar import resnet_cifar

MIB = 2**20

# MiB by module: saved graphs of DDG and PipeDream; stored inputs and one graph of FR
PUBLISHED = {
    2: ([363, 52], [185, 56]),
    4: ([390, 252, 84, 10], [104, 108, 50, 12]),
    11: (
        [193, 400, 360, 320, 168, 120, 100, 48, 30, 20, 0],
        [34, 120, 112, 104, 80, 44, 40, 28, 16, 14, 2],
    ),
}
SMALL = 8  # samples: a sixteenth of the published batch, so every graph is one
SHARE = 128 // SMALL


def _peaks(method, modules):
    """Return MiB by module that a run really keeps: graphs, and with FR stored inputs."""
    torch.manual_seed(0)
    units = resnet_cifar(20)
    pipeline = Pipeline(units, F.cross_entropy, even_cuts(len(units), modules))
    ledgers, given = [Ledger(module) for module in pipeline], [0] * modules
    for at, module in enumerate(pipeline):
        module.register_forward_pre_hook(lambda _, own, at=at: given.__setitem__(at, own[0].nbytes))
    counting(pipeline, ledgers)
    y = torch.arange(SMALL) % 10
    batches = [(torch.randn(SMALL, 3, 32, 32), y) for _ in range(modules + 1)]
    record = train_epoch(pipeline, batches, method)
    assert not any(ledger.now for ledger in ledgers)
    inputs = given if "fr" in method else [0] * modules
    return [
        SHARE * (ledger.peak + flights * held) / MIB
        for ledger, flights, held in zip(ledgers, record.flights, inputs, strict=True)
    ]


def test_a_run_with_a_unit_a_module_keeps_what_is_published():
    for method, published in zip(("pipedream", "fr"), PUBLISHED[11], strict=True):
        assert _peaks(method, 11) == pytest.approx(published, rel=0.01, abs=0.5)


@pytest.mark.parametrize("modules", [2, 4])
def test_a_run_keeps_a_graph_for_each_batch_in_flight(modules):
    one, delayed = _peaks("seq", modules), _peaks("pipedream", modules)
    assert delayed == pytest.approx([(modules - k) * mib for k, mib in enumerate(one)], rel=1e-3)
    published = PUBLISHED[modules][0]
    assert all(seen <= 1.01 * known + 0.5 for seen, known in zip(delayed, published, strict=True))


@pytest.mark.parametrize(
    ("depth", "classes", "parameters"), [(20, 10, 269_722), (110, 100, 1_733_812)]
)
def test_parameters_of_the_networks(depth, classes, parameters):
    units = resnet_cifar(depth, classes)
    counts = [sum(p.numel() for p in unit.parameters()) for unit in units]
    assert len(units) == (depth - 2) // 2 + 2
    assert sum(counts) == parameters
    if parameters == 269_722:
        assert counts == [464, *[4672] * 3, 13_952, *[18_560] * 2, 55_552, *[73_984] * 2, 650]
