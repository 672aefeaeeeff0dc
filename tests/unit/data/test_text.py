"""Texts as numbers, against brute force and against torchtext's own reader of vectors."""

import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import alkit.data.text
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


def as_text(vectors):
    return "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items())


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


def test_missing_words_are_drawn_like_the_file_by_the_seed(read):
    rng = np.random.default_rng(1)
    rows = {f"w{i}": list(rng.normal(3.0, 0.5, size=30)) for i in range(100)}
    values = np.array(list(rows.values()))
    vocabulary = vocabulary_of([[f"m{i}" for i in range(500)]])
    (drawn_VE, hits), (again_VE, _), (other_VE, _) = (
        read(as_text(rows), vocabulary, seed=seed) for seed in (4, 4, 5)
    )
    assert hits == 0
    count = drawn_VE[1:].numel()
    assert abs(float(drawn_VE[1:].mean()) - values.mean()) < 5 * values.std() / count**0.5
    assert abs(float(drawn_VE[1:].std()) - values.std()) < 5 * values.std() / (2 * count) ** 0.5
    assert torch.equal(drawn_VE, again_VE)
    assert not torch.equal(drawn_VE[1:], other_VE[1:])
    rows["m0"] = rows.pop("w0")
    known_VE, hits = read(as_text(rows), vocabulary, seed=4)
    assert hits == 1
    close = torch.isclose(known_VE, drawn_VE, rtol=1e-4).all(dim=1)
    assert (~close).sum() == 1  # a missing word does not depend on the others


DAMAGED = [
    ("a 1 2 3\nb 1 2\n", "v.txt holds rows that are not a word and 3|could not convert"),
    ("a 1 2\nb 1 nan\n", "v.txt holds rows that are not a word and 2 numbers"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED)
def test_damaged_files_are_refused(read, content, message):
    with pytest.raises(ValueError, match=message):
        read(content, vocabulary_of(CORPUS))


def test_torchtext_is_imported_lazily_and_leaves_ssl_alone():
    code = (
        "import ssl, sys, alkit.data.text, alkit.data.datasets\n"
        "assert 'torchtext' not in sys.modules\n"
        "alkit.data.text.vocabulary_of(['a b'])\n"
        "assert 'torchtext' in sys.modules\n"
        "assert ssl._create_default_https_context is ssl.create_default_context\n"
    )
    folder = Path(alkit.__file__).parent
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder.parent, check=True)
