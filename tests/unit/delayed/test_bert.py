"""BERT's units: sizes as published, and training in a pipeline."""

import pytest
import torch

from alkit.delayed import Pipeline, train_epoch
from alkit.models.bert import BertSizes, bert, initial_std, pretraining_loss

TINY = BertSizes(3, 16, 4, 32, 50, 12, dropout=0.0)


def test_parameters_as_published():
    with torch.device("meta"):
        counts = [sum(p.numel() for p in unit.parameters()) for unit in bert()]
    heads = 768 * 30_522 + 590_592 + 622_650 + 1_538
    assert counts == [23_837_184, *[7_087_872] * 3, heads]
    assert sum(counts) == 69_756_476


def _batch(size=4, tokens=12, places=2, vocabulary=50):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(5, vocabulary, (size, tokens), generator=generator)
    segments = (torch.arange(tokens) > 5).long().expand(size, -1).contiguous()
    mask = torch.ones(size, tokens, dtype=torch.bool)
    mask[0, 9:] = False
    chosen = torch.tensor([[2, 7]] * size)
    hidden = words.gather(1, chosen)
    hidden[1, 1] = -100
    return (words, segments, mask, chosen), (hidden, torch.arange(size) % 2)


@pytest.mark.parametrize("method", ["pipedream", "fr"])
def test_it_trains_in_a_pipeline(method):
    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)

    pipeline = Pipeline(bert(TINY), pretraining_loss, [2, 3], adam)
    record = train_epoch(pipeline, [_batch()] * 30, method, clip=1.0)
    assert record.losses[-1] < 0.5 * record.losses[0]


def test_tied_words_need_one_module():
    units = bert(TINY, tied=True)
    assert units[-1].decoder.weight is units[0].words.weight
    with pytest.raises(ValueError, match="modules 0 and 1 share a parameter"):
        Pipeline(units, pretraining_loss, [2])


def test_initial_weights():
    """As wide as published, or wider where the network is narrower."""
    assert initial_std(768) == pytest.approx(0.02)
    assert initial_std(192) == pytest.approx(0.04)
    for std in (0.02, 0.2):
        units = bert(TINY._replace(std=std), classes=5)
        words, scores = units[0].words.weight, units[-1].next.weight
        assert words.std().item() == pytest.approx(std, rel=0.1)
        assert scores.shape == (5, 16)
        assert scores.std().item() == pytest.approx(std, rel=0.3)
