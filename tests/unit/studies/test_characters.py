"""The character model sees only the past, and its data is what it says."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from studies.delayed import characters

TINY = characters.Sizes(layers=3, width=8, heads=2, context=6, dropout=0.2)
TEXT = "abcab bca cab. " * 40


def _ids():
    alphabet = characters.Alphabet(TEXT)
    return alphabet, alphabet.encode(TEXT)


def test_a_place_sees_the_past_alone():
    units = characters.character_model(TINY, 7)
    model = torch.nn.Sequential(*units).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    other = ids.clone()
    other[0, 3] = 1
    one, two = model(ids), model(other)
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert (one[:, 3:] != two[:, 3:]).any(2).all()


def test_a_batch_asks_for_the_next_character():
    alphabet, ids = _ids()
    named = {number: each for each, number in alphabet.numbers.items()}
    for x, y in characters.batches(ids, size=4, context=6, steps=3, seed=0):
        assert x.shape == y.shape == (4, 6)
        assert torch.equal(x[:, 1:], y[:, :-1])
        for row in torch.cat([x, y[:, -1:]], dim=1).tolist():
            assert "".join(named[each] for each in row) in TEXT


def test_rare_characters_are_one_and_unigrams_are_those_by_hand():
    alphabet = characters.Alphabet("aaabbbc", least=3)
    assert alphabet.encode("abcz").tolist() == [1, 2, 0, 0]
    assert len(alphabet) == 3
    train, other = torch.tensor([1, 1, 2]), torch.tensor([1, 2, 0])
    expected = -(math.log(3 / 6) + math.log(2 / 6) + math.log(1 / 6)) / 3
    assert characters.unigram_loss(train, other, 3) == pytest.approx(expected)


def test_an_articles_loss_is_the_mean_over_its_whole_windows():
    alphabet, ids = _ids()
    model = torch.nn.Sequential(*characters.character_model(TINY, len(alphabet)))
    articles = [ids[:20], ids[5:9], ids[3:16]]  # 19 next characters, 3, 12
    found = characters.article_losses(model, articles, context=6, batch_size=2)
    model.eval()
    for value, article in zip(found, (ids[:19], ids[3:16]), strict=True):
        parts = [article[at : at + 7] for at in range(0, len(article) - 1, 6)]
        losses = [F.cross_entropy(model(p[None, :-1])[0], p[1:]).item() for p in parts]
        assert value == pytest.approx(np.mean(losses), rel=1e-5)
