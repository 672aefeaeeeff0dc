"""Notebook 00's peak bytes: by hand where weights rule, and what each method's idea costs."""

import pytest
import torch
from torch import nn

from alkit.data import datasets
from alkit.data.parts import DataSet, Part
from studies import axis_memory

WIDE, BATCH = 512, 4
BLOCK = 4 * (WIDE * WIDE + WIDE)  # bytes of a linear block's weights


@pytest.fixture
def wide(monkeypatch):
    """Four linear blocks whose weights dwarf what a batch keeps."""
    blocks = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.ELU()) for _ in range(3)]
    monkeypatch.setattr(axis_memory, "network", lambda *_: [*blocks, nn.Linear(WIDE, 3)])
    part = Part(torch.randn(8, WIDE), torch.arange(8) % 3, 3)
    return DataSet("wide", part, part, part, 3, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "copies"),
    # weights, gradient, Adam's two; stashed versions; two blocks with momentum; a feedback with it
    [("bp", 4), ("1f1b", 4), ("elastic", 4), ("fr", 4), ("ddg", 7), ("pipelearn", 6), ("dtp", 7)],
)
def test_copies_of_the_weights_are_the_methods(wide, name, copies):
    found = axis_memory.peak_bytes(name, wide, BATCH)
    assert found == pytest.approx(copies * BLOCK, rel=0.02)


def test_activations_of_all_batches_under_way_are_held():
    data = datasets.load("digits").subset(train=64)
    all_four = {name: axis_memory.peak_bytes(name, data, 32) for name in ("bp", "ddg", "fr")}
    assert all_four["ddg"] > 3 * all_four["fr"]  # graphs of four batches against their inputs
    assert all_four["fr"] > all_four["bp"]
