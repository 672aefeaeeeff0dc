"""Texts as numbers, against brute force and against torchtext's own reader of vectors."""

import ssl
from collections import Counter

import numpy as np
import pytest
import torch

from alkit.data.text import clean, encode, load_vectors, vocabulary_of

CORPUS = ["the cat saw the dog", "the dog ran", "a cat ran to the bird", "bird"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. economy", ["the", "u", "s", "economy"]),
        ("A <a href='x.y'>LINK</a>!one<br />two", ["a", "link", "one", "two"]),
        ("tabs\tand\n lines", ["tabs", "and", "lines"]),
        ("Élan, naïve", ["élan", "naïve"]),
        ("...", []),
        ("5 < 6 and 7 > 2", ["5", "6", "and", "7", "2"]),
        ("a <!-- a > b --> <b class='x'>c</b>", ["a", "c"]),
        ("The <b>cat</b>, DON'T!", ["cat"]),
    ],
)
def test_clean(text, words):
    drop = frozenset(["the", "don", "t"] if "DON'T" in text else [])
    assert clean(text, drop=drop) == words


@pytest.mark.parametrize("max_size", [None, 3, 5, 100])
def test_vocabulary_orders_by_frequency_then_alphabet(max_size):
    counts = Counter(" ".join(CORPUS).split())
    kept = sorted((-n, word) for word, n in counts.items())
    words = ["<pad>", "<unk>", *(word for _, word in kept)][:max_size]
    for texts in (CORPUS, reversed(CORPUS)):
        assert vocabulary_of(texts, max_size=max_size) == words
    assert vocabulary_of([["U.S.", "Cat"]])[2:] == ["Cat", "U.S."]  # words as they are


@pytest.mark.parametrize("max_len", [1, 4, 9])
@pytest.mark.parametrize("texts", [["a b c", "", "b"], ["a"] * 500, ["a b " * 30, "..."], [""]])
def test_encode_equals_padding_row_by_row(texts, max_len):
    """The head is kept, and an empty text is one unknown word; so is padding that is a word."""
    vocabulary, row = vocabulary_of([["<pad>", "a", "b"]]), {"a": 2, "b": 3}
    cut = [clean(text)[:max_len] for text in texts]
    rows = [torch.tensor([row.get(word, 1) for word in words] or [1]) for words in cut]
    expected_NT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    assert torch.equal(encode(texts, vocabulary, max_len), expected_NT)
    assert encode([["<pad>", "a"]], vocabulary, 9).tolist() == [[1, 2]]


@pytest.fixture
def read(tmp_path):
    """Read vectors of a file of this content."""

    def call(content, vocabulary, **options):
        (tmp_path / "v.txt").write_text(content)
        return load_vectors(tmp_path / "v.txt", vocabulary, **options)

    return call


def test_vectors_equal_those_of_torchtext(tmp_path, monkeypatch, capsys):
    from torchtext.vocab import Vectors

    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(200)] + ["naïve", "a\u00a0b", "w7"]
    lines = [" ".join([w, *(f"{v:.5f}" for v in rng.normal(size=20))]) for w in words]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    vocabulary = vocabulary_of([words])
    ours_VE, hits = load_vectors(path, vocabulary)
    # Vectors replaces this function for the whole process; monkeypatch puts it back
    monkeypatch.setattr(ssl, "_create_default_https_context", ssl._create_default_https_context)
    theirs = Vectors(str(path), cache=str(tmp_path / "cache"))
    capsys.readouterr()
    assert hits == len(set(words)) == len(theirs.stoi)
    assert torch.equal(ours_VE[2:], theirs.get_vecs_by_tokens(vocabulary[2:]))


DAMAGED = [
    ("a 1 2 3\nb 1 2\n", "v.txt holds rows that are not a word and 3|could not convert"),
    ("a 1 2\nb 1 nan\n", "v.txt holds rows that are not a word and 2 numbers"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED)
def test_damaged_files_are_refused(read, content, message):
    with pytest.raises(ValueError, match=message):
        read(content, vocabulary_of(CORPUS))
