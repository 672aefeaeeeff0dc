"""Embedded English text: 6,000 sentences of docstrings, label = the package that they document.

`pydocs.txt.gz` holds them; its head says which sources they are from, and under which licence.
"""

import gzip
import hashlib
import json
from pathlib import Path

import torch

from alkit.data.parts import DataSet, Part, stratified_split
from alkit.data.text import Vocabulary, clean, encode

PACKAGES = ("numpy", "pandas", "sklearn", "scipy", "torch")


def sentences(per_class: int = 1200) -> tuple[list[str], list[int], str]:
    """Return sentences, labels (numbers in `PACKAGES`) and the SHA-256 of both.

    Args:
        per_class: how many of each package, from its first.
    Raises:
        ValueError: `per_class` below 1, or above 1,200, which there are.
    """
    packed = Path(__file__).with_name("pydocs.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode().split("\n")
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    own = [[text for package, text in rows if package == each] for each in PACKAGES]
    if not 1 <= per_class <= len(own[0]):
        raise ValueError(f"per_class is {per_class}: give 1 to {len(own[0])}")
    texts = [text for each in own for text in each[:per_class]]
    labels = [label for label in range(len(PACKAGES)) for _ in range(per_class)]
    # the third list was of what could not be read while the sentences were gathered anew each time
    return texts, labels, hashlib.sha256(json.dumps([texts, labels, []]).encode()).hexdigest()


def load_pydocs(
    *, seed: int = 0, per_class: int = 1200, max_size: int = 5000, max_len: int = 40
) -> DataSet:
    """Load the sentences as a data set, split 60/20/20 class by class by the seed alone.

    Args:
        max_size: the most rows of the vocabulary, which is built from the training part.
        max_len: the most words kept of a sentence.
    Raises: what `sentences`, `Vocabulary` and `encode` raise.
    """
    texts, labels, digest = sentences(per_class)
    y_N = torch.tensor(labels)
    rows = stratified_split(y_N, seed=seed)
    words = [clean(text) for text in texts]
    vocabulary = Vocabulary((words[row] for row in rows[0].tolist()), max_size=max_size)
    x_NT = encode(words, vocabulary, max_len)
    train, validation, test = (
        Part(x_NT[part], y_N[part], len(PACKAGES), pad=vocabulary.pad) for part in rows
    )
    note, classes = f"sha256 {digest[:12]}", len(PACKAGES)
    return DataSet("pydocs", train, validation, test, classes, PACKAGES, vocabulary, note)
