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
    "pipedream": [193, 400, 360, 320, 168, 120, 100, 48, 30, 20, 0],
    "fr": [34, 120, 112, 104, 80, 44, 40, 28, 16, 14, 2],
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


@pytest.mark.parametrize("method", PUBLISHED)
def test_a_run_with_a_unit_a_module_keeps_what_is_published(method):
    assert _peaks(method, 11) == pytest.approx(PUBLISHED[method], rel=0.01, abs=0.5)
