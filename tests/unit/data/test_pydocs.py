"""The shipped sentences of docstrings, and the data set of them."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import torch

from alkit.data import datasets
from alkit.data.datasets import stratified_split
from alkit.data.text import clean

GOLDEN = "4cd4fb165e576313e8292f2e139060699fd237b659dc632206b57b4f0f9a8d8f"


def test_the_sentences_are_the_frozen_ones_and_of_one_package_each():
    table = datasets.sentences()
    texts, labels = table["text"].tolist(), table["label"].tolist()
    digest = hashlib.sha256(json.dumps([texts, labels, []]).encode())  # as it was frozen
    assert digest.hexdigest() == GOLDEN
    assert labels == [label for label in range(5) for _ in range(1200)]
    assert all(10 <= len(text.split()) <= 40 for text in texts)
    words = [clean(text) for text in texts]
    names = {"numpy", "np", "pandas", "pd", "sklearn", "scikit", "scipy", "torch", "pytorch"}
    assert not names & {word for text in words for word in text}
    assert len({tuple(text) for text in words}) == len(words)


def test_the_file_says_where_they_are_from_and_keeps_the_notices():
    packed = Path(datasets.__file__).with_name("pydocs.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode().split("\n")
    head = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    notices = ["numpy 2.4.6", "NumPy Developers", "PyData Development Team", "scikit-learn deve"]
    notices += ["SciPy Developers", "Facebook", "this list of conditions and the following"]
    assert [words for words in notices if words not in head] == []


def test_the_data_set_has_its_sizes_and_the_vocabulary_of_its_training_part():
    data = datasets.load("pydocs")
    assert data.describe() == (
        "pydocs: 3600 train, 1200 validation, 1200 test; 5 classes;"
        " texts of up to 40 tokens; vocabulary 5000"
    )
    for part, share in ((data.train, 720), (data.validation, 240), (data.test, 240)):
        assert part.y.bincount().tolist() == [share] * 5
        assert (part.x != 0).any(dim=1).all()
    table = datasets.sentences()
    texts, labels = table["text"].tolist(), table["label"].tolist()
    rows = stratified_split(torch.tensor(labels), seed=0)
    counts = Counter(word for row in rows[0].tolist() for word in clean(texts[row]))
    by_rank = sorted(counts, key=lambda word: (-counts[word], word))
    assert data.vocabulary[2:] == by_rank[:4998]
    decoded = [data.vocabulary[i] for i in data.test.x[0].tolist() if i]
    expected = [w if w in by_rank[:4998] else "<unk>" for w in clean(texts[int(rows[2][0])])]
    assert decoded == expected[:40]
    assert data.test.y[0] == labels[int(rows[2][0])]
    small = datasets.load("pydocs", seed=1, max_size=100, max_len=7)
    assert small.train.x.shape == (3600, 7)
    assert int(small.train.x.max()) == 99
    assert not torch.equal(small.train.x[:, :5] == 1, data.train.x[:, :5] == 1)
