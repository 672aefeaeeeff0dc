"""Texts as numbers, against brute force and against torchtext's own reader of vectors."""

import re
import socket
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import alkit.data.text
from alkit.base import paths
from alkit.data.text import clean, encode, load_vectors, stop_words, vocabulary_of

from .test_archives import make_zip

CORPUS = ["the cat saw the dog", "the dog ran", "a cat ran to the bird", "bird"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. economy", ["the", "u", "s", "economy"]),
        ("one<br />two", ["one", "two"]),
        ("A <a href='x.y'>LINK</a>!", ["a", "link"]),
        ("tabs\tand\n lines", ["tabs", "and", "lines"]),
        ("Élan, naïve", ["élan", "naïve"]),
        ("...", []),
        ("", []),
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
        vocabulary = vocabulary_of(texts, max_size=max_size)
        assert vocabulary == words
        assert len(vocabulary) == len(words)


def test_words_are_their_rows_and_others_unknown():
    vocabulary = vocabulary_of(CORPUS)
    for row, word in enumerate(vocabulary[2:], start=2):
        assert encode([[word]], vocabulary, 1).tolist() == [[row]]
    assert encode([["unheard", "the", "of"]], vocabulary, 9).tolist() == [[1, 2, 1]]
    assert encode([[]], vocabulary, 9).tolist() == [[1]]
    assert vocabulary_of([["U.S.", "Cat"]])[2:] == ["Cat", "U.S."]  # words as they are
    assert encode([["<pad>", "a"]], vocabulary_of([["<pad>", "a"]]), 9).tolist() == [[1, 2]]


@pytest.mark.parametrize("source", ["https://example.org/v.txt", "no.txt", Path("no.txt")])
def test_vectors_are_a_local_file(source):
    with pytest.raises(FileNotFoundError, match="no word vectors"):
        load_vectors(source, vocabulary_of(CORPUS))


VECTORS = {"dog": [1.0, 2.5, -3.0], "zebra": [9.0, 9.0, 9.5], "the": [0.25, 0.0, 1.0]}


def write_vectors(path: Path, vectors: dict[str, list[float]]) -> Path:
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def zipped(path: Path, members: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make_zip(path, {name: text.encode() for name, text in members.items()})


def test_vectors_are_aligned_by_word(tmp_path):
    vocabulary = vocabulary_of(CORPUS)
    vectors_VE, hits = load_vectors(write_vectors(tmp_path / "v.txt", VECTORS), vocabulary)
    assert vectors_VE.shape == (len(vocabulary), 3)
    assert vectors_VE.dtype == torch.float32
    assert hits == 2
    for word in ("dog", "the"):
        assert vectors_VE[vocabulary.index(word)].tolist() == VECTORS[word]
    assert vectors_VE[0].tolist() == [0.0, 0.0, 0.0]
    missing = [row for row, word in enumerate(vocabulary) if word not in VECTORS and row]
    assert vectors_VE[missing].abs().min() > 0


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


def test_missing_words_are_drawn_like_the_file_by_the_seed(tmp_path):
    rng = np.random.default_rng(1)
    rows = {f"w{i}": list(rng.normal(3.0, 0.5, size=30)) for i in range(100)}
    path = write_vectors(tmp_path / "v.txt", rows)
    values = np.array(list(rows.values()))
    vocabulary = vocabulary_of([[f"m{i}" for i in range(500)]])
    drawn_VE, hits = load_vectors(path, vocabulary, seed=4)
    assert hits == 0
    count = drawn_VE[1:].numel()
    assert abs(float(drawn_VE[1:].mean()) - values.mean()) < 5 * values.std() / count**0.5
    assert abs(float(drawn_VE[1:].std()) - values.std()) < 5 * values.std() / (2 * count) ** 0.5
    again_VE, _ = load_vectors(path, vocabulary, seed=4)
    other_VE, _ = load_vectors(path, vocabulary, seed=5)
    assert torch.equal(drawn_VE, again_VE)
    assert not torch.equal(drawn_VE[1:], other_VE[1:])
    rows["m0"] = rows.pop("w0")
    known_VE, hits = load_vectors(write_vectors(path, rows), vocabulary, seed=4)
    assert hits == 1
    close = torch.isclose(known_VE, drawn_VE, rtol=1e-4).all(dim=1)
    assert (~close).sum() == 1  # a missing word does not depend on the others


ODD = [  # what a file holds, the vectors of the words that are looked for
    (b"\xff\xfe 1 2\ndog 3 4\n", {"dog": [3, 4]}),  # a word that is no UTF-8
    (b"<pad> 1 1\n<unk> 2 3\n", {"<pad>": [0, 0], "<unk>": [2, 3]}),
]


@pytest.mark.parametrize(("content", "vectors"), ODD)
def test_odd_words_do_no_harm(tmp_path, content, vectors):
    (tmp_path / "v.txt").write_bytes(content)
    vocabulary = vocabulary_of(CORPUS)
    vectors_VE, hits = load_vectors(tmp_path / "v.txt", vocabulary)
    assert hits == len(vectors.keys() - {"<pad>"})
    found = {word: vectors_VE[vocabulary.index(word)].tolist() for word in vectors}
    assert found == vectors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "No columns to parse"),
        (
            "a 1 2 3\nb 1 2\n",
            "v.txt holds rows that are not a word and 3 numbers|could not convert",
        ),
        ("a 1 2\nb 1 2 3\n", "Expected 3 fields in line 2, saw 4"),
        ("a 1 2\nb 1 x\n", "could not convert string to float: 'x'"),
        ("a 1 2\nb 1 nan\n", "v.txt holds rows that are not a word and 2 numbers"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, message):
    path = tmp_path / "v.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_vectors(path, vocabulary_of(CORPUS))


def test_loading_touches_no_network_no_cache_and_no_ssl(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    path = write_vectors(tmp_path / "v.txt", VECTORS)
    planted = tmp_path / "v.txt.pt"
    torch.save((["dog"], {"dog": 0}, torch.ones(1, 3), 3), planted)
    vocabulary = vocabulary_of(CORPUS)
    vectors_VE, _ = load_vectors(Path("v.txt"), vocabulary)
    assert vectors_VE[vocabulary.index("dog")].tolist() == VECTORS["dog"]
    assert sorted(tmp_path.iterdir()) == [path, planted]
    assert ssl._create_default_https_context is ssl.create_default_context


def test_torchtext_is_imported_lazily_by_one_module_and_leaves_ssl_alone():
    code = (
        "import ssl, sys, alkit.data.text, alkit.data.datasets\n"
        "assert 'torchtext' not in sys.modules\n"
        "alkit.data.text.vocabulary_of(['a b'])\n"
        "assert 'torchtext' in sys.modules\n"
        "assert ssl._create_default_https_context is ssl.create_default_context\n"
    )
    folder = Path(alkit.__file__).parent
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder.parent, check=True)
    line = re.compile(r"^\s*(import|from) torchtext\b", re.MULTILINE)
    importers = {path.name for path in folder.rglob("*.py") if line.search(path.read_text())}
    assert importers == {"text.py"}


def test_stop_words_are_the_179_of_the_list():
    words = stop_words()
    assert len(words) == 179
    assert {"i", "the", "don't", "don", "t", "wouldn't"} <= words
    assert not {"#", "", "news", "english", "cannot"} & words
    assert all(word == word.strip().lower() for word in words)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "glove").mkdir()
    return tmp_path


def test_vectors_are_read_from_a_member_of_a_zip(folders):
    path = write_vectors(folders / "v.txt", VECTORS)
    zipped(folders / "glove" / "v.zip", {"a.txt": "cat 1", "v.txt": path.read_text()})
    vocabulary = vocabulary_of(CORPUS)
    got_VE, hits = load_vectors("v", vocabulary)
    expected_VE, expected_hits = load_vectors(path, vocabulary)
    assert torch.equal(got_VE, expected_VE)
    assert hits == expected_hits
    with pytest.raises(FileNotFoundError):
        load_vectors("w", vocabulary)
    zipped(folders / "glove" / "w.zip", {"w.txt": "a 1 2\nb 1\n"})
    with pytest.raises(ValueError, match=r"w.zip/w.txt holds|could not convert"):
        load_vectors("w", vocabulary)


def test_vectors_are_found_as_files_and_in_zips_or_what_is_there_is_said(folders):
    def read():
        return float(load_vectors("g.50d", vocabulary_of(["a"]))[0][2])

    zipped(folders / "glove" / "x.zip", {"other.txt": "a 1", "readme": ""})
    with pytest.raises(FileNotFoundError, match="fetch.'glove.6B'. downloads") as caught:
        read()
    assert str(folders / "shared" / "glove") in str(caught.value)
    zipped(folders / "shared" / "glove" / "glove.6B_subset.zip", {"g.50d.txt": "a 1"})
    assert read() == 1
    zipped(folders / "glove" / "g.zip", {"g.50d.txt": "a 2"})
    assert read() == 2
    (folders / "shared" / "glove" / "g.50d.txt").write_text("a 3")
    assert read() == 3
    (folders / "glove" / "g.50d.txt").write_text("a 4")
    assert read() == 4


@pytest.mark.parametrize("max_len", [1, 4, 9])
@pytest.mark.parametrize("texts", [["a b c", "", "b"], ["a"] * 5_000, ["a b " * 30, "..."], [""]])
def test_encode_equals_padding_row_by_row(texts, max_len):
    """The head is kept, and an empty text is one unknown word."""
    vocabulary = vocabulary_of(["a b"])
    row = {"a": 2, "b": 3}
    cut = [clean(text)[:max_len] for text in texts]
    rows = [torch.tensor([row.get(word, 1) for word in words] or [1]) for words in cut]
    expected_NT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    assert torch.equal(encode(texts, vocabulary, max_len), expected_NT)
