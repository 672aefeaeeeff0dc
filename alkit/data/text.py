"""Texts as numbers: cleaning, vocabulary, padding, pretrained word vectors.

The only module that imports torchtext (0.6.0, for `Vocab`). Its `Vectors` is not used: each call
turns off TLS verification for the whole process. `load_vectors` reads the same files.

Shapes: N texts, T tokens, V rows of the vocabulary, E numbers of a word vector.
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

PAD_WORD, UNK_WORD = "<pad>", "<unk>"
_TAG = re.compile(r"<[/!?]?[a-z][^<>]*>|<!--.*?-->", re.DOTALL)  # 5 < 6 is no mark-up
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


class Vocabulary:
    """Number the words of a corpus: frequent words first, equally frequent ones alphabetically.

    Row 0 is padding, row 1 unknown words.

    Args:
        texts: of the training part only; strings are cleaned, lists of words taken as they are.
        max_size: the most rows, these two included; None for all.

    Example:
        >>> Vocabulary(["a cat", "a dog"]).words
        ['<pad>', '<unk>', 'a', 'cat', 'dog']
    """

    pad, unk = 0, 1

    def __init__(
        self, texts: Iterable[str | Sequence[str]], *, max_size: int | None = None
    ) -> None:
        from torchtext.vocab import Vocab  # brings requests and sentencepiece with it

        counts = Counter(word for text in texts for word in _words(text))
        most = None if max_size is None else max_size - 2
        self.words: list[str] = Vocab(counts, most, specials=[PAD_WORD, UNK_WORD]).itos
        self._rows = {word: row for row, word in enumerate(self.words)}
        # a word spelt like the padding is an unknown word, or a text could be all padding
        self._rows[PAD_WORD] = self.unk

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Return the row of each word; an empty text is one unknown word."""
        return [self._rows.get(token, self.unk) for token in tokens] or [self.unk]


def encode(texts: Iterable[str | Sequence[str]], vocabulary: Vocabulary, max_len: int) -> Tensor:
    """Number texts and pad them on the right to the longest.

    Args:
        texts: strings, which are cleaned, or lists of words.
        max_len: the most words kept of a text, from its beginning.
    Returns: int64 (N, T) with 1 <= T <= max_len; no row is padding only.
    """
    rows = [vocabulary.encode(_words(text)[:max_len]) for text in texts]
    # one array: a tensor a text takes a minute for half a million texts
    padded_NT = np.full((len(rows), max(map(len, rows))), vocabulary.pad)
    for padded_T, row in zip(padded_NT, rows, strict=True):
        padded_T[: len(row)] = row
    return torch.from_numpy(padded_NT)


def load_vectors(
    source: str | Path, vocabulary: Vocabulary, *, seed: int = 0
) -> tuple[Tensor, int]:
    """Read pretrained vectors in GloVe's text form, aligned with the vocabulary.

    A word that the file lacks gets normal numbers with mean and sd of all numbers of the file, a
    function of its row and the seed; the row of padding is zero.

    Args:
        source: a path of lines `word number ... number`; or a name such as "glove.6B.300d", whose
            `NAME.txt` is looked for in `glove/` and `$ALKIT_DATA/glove`: files, then zips.
    Returns: float32 (V, E), row i for `vocabulary.words[i]`; how many rows came from the file.
    Raises:
        FileNotFoundError: they are nowhere; says how to get them.
        ValueError: a row of another width, or a number that is not finite.
    """
    folders = [paths.root() / "glove", paths.shared_data_dir() / "glove"]
    zips = [each for folder in folders for each in sorted(folder.glob("*.zip"))]
    files: list[Any] = [source] if isinstance(source, Path) else []
    files += [folder / f"{source}.txt" for folder in folders]
    files += [zipfile.Path(each, f"{source}.txt") for each in zips]
    path = next((each for each in files if each.exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"no word vectors {source} in {folders[0]} or {folders[1]}:"
            " alkit.datasets.fetch('glove.6B') downloads GloVe 6B (822 MiB)"
        )
    form: dict[str, Any] = {"sep": " ", "header": None, "quoting": 3, "na_filter": False}
    form |= {"index_col": 0, "dtype": {0: str}, "encoding_errors": "replace"}
    with path.open("rb") as lines:
        table = pd.read_csv(lines, **form)
    numbers = table.to_numpy(dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path} holds rows that are not a word and {numbers.shape[1]} numbers")
    vectors_VE = torch.empty(len(vocabulary), numbers.shape[1])
    generator = generator_for("vectors", int(seed))
    vectors_VE.normal_(numbers.mean(), numbers.std(), generator=generator)
    places = {word: place for place, word in enumerate(table.index)}
    found = [row for row, word in enumerate(vocabulary.words) if row and word in places]
    own = numbers[[places[vocabulary.words[row]] for row in found]]
    vectors_VE[found] = torch.from_numpy(own).float()
    vectors_VE[vocabulary.pad] = 0.0
    return vectors_VE, len(found)


def _words(text: str | Sequence[str]) -> Sequence[str]:
    return clean(text) if isinstance(text, str) else text
