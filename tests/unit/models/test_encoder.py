"""BERT's units: sizes and first weights as published."""

import pytest
import torch

from alkit.models.encoder import BertSizes, bert

TINY = BertSizes(3, 16, 4, 32, 50, 12, dropout=0.0)


def test_parameters_as_published():
    with torch.device("meta"):
        counts = [sum(p.numel() for p in unit.parameters()) for unit in bert()]
    heads = 768 * 30_522 + 590_592 + 622_650 + 1_538
    assert counts == [23_837_184, *[7_087_872] * 3, heads]
    assert sum(counts) == 69_756_476


def test_initial_weights():
    for std in (0.02, 0.2):
        units = bert(TINY._replace(std=std), classes=5)
        words, scores = units[0].words.weight, units[-1].next.weight
        assert words.std().item() == pytest.approx(std, rel=0.1)
        assert scores.shape == (5, 16)
        assert scores.std().item() == pytest.approx(std, rel=0.3)


def test_every_parameter_gets_a_gradient():
    words, places = torch.randint(0, 50, (2, 12)), torch.tensor([[2, 7], [1, 3]])
    found = words, torch.zeros_like(words), torch.ones(2, 12, dtype=torch.bool), places
    units = bert(TINY)
    for unit in units:
        found = unit(found)
    scores, whole = found
    assert (scores.shape, whole.shape) == ((2, 2, 50), (2, 2))
    (scores.logsumexp(-1).sum() + whole.square().sum()).backward()
    assert all(p.grad is not None for unit in units for p in unit.parameters())
