"""Texts as numbers: cleaning, vocabulary, padding, pretrained word vectors.

torchtext's `Vectors` is not used: each call turns off TLS verification for the whole process.

Shapes: N texts, T tokens, V words of the vocabulary, E numbers of a word vector.
"""

import re
import string
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from alkit.base import paths
from alkit.base.seeds import generator_for

PAD, UNKNOWN = 0, 1  # rows of every vocabulary
_TAG = re.compile(r"<[/!?]?[a-z][^<>]*>|<!--.*?-->", re.DOTALL)  # 5 < 6 isn't mark-up
_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))


def clean(text: str, *, drop: frozenset[str] = frozenset()) -> list[str]:
    """Split a text into lower-case words without mark-up, ASCII punctuation and those of `drop`.

    Each mark becomes a blank ("u.s." -> "u", "s"), where the AL publication deletes it ("us").
    """
    words = _TAG.sub(" ", text.lower()).translate(_BLANKS).split()
    return [word for word in words if word not in drop]


@cache
def stop_words() -> frozenset[str]:
    """Return the English stop words of NLTK; `stopwords.txt` says where they are from."""
    lines = Path(__file__).with_name("stopwords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def vocabulary_of(
    texts: Iterable[str | Sequence[str]], *, max_size: int | None = None
) -> Sequence[str]:
    """List the words of a corpus by torchtext: frequent ones first, equally frequent ones sorted.

    Args:
        texts: of the training part only; strings are cleaned, lists of words taken as they are.
        max_size: the most rows, padding and unknown words included; None for all.

    Example:
        >>> vocabulary_of(["a cat", "a dog"])
        ['<pad>', '<unk>', 'a', 'cat', 'dog']
    """
    from torchtext.vocab import Vocab  # brings requests and sentencepiece with it

    counts = Counter(word for text in texts for word in _words(text))
    most = None if max_size is None else max_size - 2
    return Vocab(counts, most, specials=["<pad>", "<unk>"]).itos


def encode(texts: Iterable[str | Sequence[str]], vocabulary: Sequence[str], max_len: int) -> Tensor:
    """Number texts, cut to `max_len` words, and pad them on the right to the longest.

    Returns: int64 (N, T); an empty text is one unknown word.
    """
    row_of = {word: row for row, word in enumerate(vocabulary)}
    row_of["<pad>"] = UNKNOWN  # a word spelt so, or a text could be all padding
    cut = (_words(text)[:max_len] for text in texts)
    rows = [[row_of.get(word, UNKNOWN) for word in words] or [UNKNOWN] for words in cut]
    # one array: a tensor a text takes a minute for half a million texts
    padded_NT = np.full((len(rows), max(map(len, rows))), PAD)
    for padded_T, row in zip(padded_NT, rows, strict=True):
        padded_T[: len(row)] = row
    return torch.from_numpy(padded_NT)


def load_vectors(
    source: str | Path, vocabulary: Sequence[str], *, seed: int = 0
) -> tuple[Tensor, int]:
    """Read pretrained vectors in GloVe's text form, aligned with the vocabulary.

    A word that the file lacks gets normal numbers with mean and sd of all numbers of the file, a
    function of its row and the seed; the row of padding is zero.

    Args:
        source: a path of lines `word number ... number`; or a name such as "glove.6B.300d", whose
            `NAME.txt` is looked for in `glove/` and `$ALKIT_DATA/glove`: as a file, then in zips.
    Returns: float32 (V, E); how many rows came from the file.
    """
    folders = [paths.root() / "glove", paths.shared_data_dir() / "glove"]
    zips = [each for folder in folders for each in sorted(folder.glob("*.zip"))]
    files: list[Any] = [source] if isinstance(source, Path) else []
    files += [folder / f"{source}.txt" for folder in folders]
    files += [zipfile.Path(each, f"{source}.txt") for each in zips]
    path = next((each for each in files if each.exists()), None)
    if path is None:
        said = f"no word vectors {source} in {folders[0]} or {folders[1]}"
        raise FileNotFoundError(f"{said}: alkit.datasets.fetch('glove.6B') downloads 822 MiB")
    form: dict[str, Any] = {"sep": " ", "header": None, "quoting": 3, "na_filter": False}
    form |= {"index_col": 0, "dtype": {0: str}, "encoding_errors": "replace"}
    with path.open("rb") as lines:
        table = pd.read_csv(lines, **form).astype(np.float64)
    if not np.isfinite(numbers := table.to_numpy()).all():
        raise ValueError(f"{path} holds rows that are not a word and {numbers.shape[1]} numbers")
    own = table[~table.index.duplicated(keep="last")].reindex(vocabulary).to_numpy()
    found_V1 = torch.from_numpy(np.isfinite(own[:, :1]))
    found_V1[PAD] = False
    drawn_VE = torch.empty(own.shape)
    drawn_VE.normal_(numbers.mean(), numbers.std(), generator=generator_for("vectors", int(seed)))
    drawn_VE[PAD] = 0.0
    vectors_VE = torch.tensor(own).float().where(found_V1, drawn_VE)
    return vectors_VE, int(found_V1.sum())


def _words(text: str | Sequence[str]) -> Sequence[str]:
    return clean(text) if isinstance(text, str) else text
