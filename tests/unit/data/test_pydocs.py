"""The shipped sentences of docstrings."""

import hashlib
import json

from alkit.data import datasets
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
