"""The rivals train what BP trains: the same losses, on the same batches."""

import pytest
import torch

from alkit import train_epoch
from studies.common import torch_pipelines
from studies.common.stacks import Stack

SIZES = {
    "transformer": {"layers": 2, "width": 12, "heads": 2, "ffn": 8},
    "lstm": {"layers": 2, "width": 12},
}


def _stack(kind):
    return Stack(kind=kind, texts=8, tokens=5, batches=3, dropout=0.0, **SIZES[kind])


def _expected(stack):
    """BP's losses, after the steps of warm-up that the rivals take."""
    batches, model = list(stack.stream()), stack.model("bp")
    train_epoch(model, batches[: torch_pipelines.WARMUP], "bp")
    return train_epoch(model, batches, "bp").losses


@pytest.mark.parametrize(("kind", "schedule"), [("transformer", "1f1b"), ("lstm", "gpipe")])
def test_torch_s_pipelines(kind, schedule):
    stack = _stack(kind)
    record = torch_pipelines.torch_pipeline(stack, schedule, 2, [1])
    assert torch.allclose(record.losses, _expected(stack), atol=1e-4)
    assert len(record.timeline.batch_ends_s) == stack.batches
    assert record.samples == 24


def test_data_parallel():
    stack = _stack("transformer")
    record = torch_pipelines.data_parallel(stack)
    assert torch.allclose(record.losses, _expected(stack), atol=1e-4)
