"""Texts as numbers: cleaning, vocabulary, padding, pretrained word vectors.

The only module that imports torchtext (0.6.0, for `Vocab`). Its `Vectors` is not used: each call
turns off TLS verification for the whole process, writes a pickled cache, skips rows it cannot
decode and names no line in its errors. `load_vectors` reads the same files without these.

Shapes: N texts, T tokens, V rows of the vocabulary, E numbers of a word vector.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from alkit.rng import generator_for

__all__ = ["Vocabulary", "clean", "encode", "load_vectors"]

PAD_WORD, UNK_WORD = "<pad>", "<unk>"
_TAG = re.compile(r"<[^>]*>")
_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
_NOTHING = str.maketrans("", "", string.punctuation)


def clean(text: str, *, legacy: bool = False) -> list[str]:
    """Split a text into lower-case words without mark-up and ASCII punctuation.

    Anything between < and > goes first, then each punctuation mark becomes a blank ("u.s." -> "u",
    "s"). `legacy=True` deletes both instead, as the AL publication did, which glues neighbours
    together ("u.s." -> "us", "end.<br>next" -> "endnext").
    """
    text = _TAG.sub("" if legacy else " ", text.lower())
    return text.translate(_NOTHING if legacy else _BLANKS).split()


class Vocabulary:
    """Number the words of a corpus: frequent words first, equally frequent ones alphabetically.

    Args:
        texts: of the training part only; strings are cleaned, lists of words taken as they are.
        max_size: the most rows, the rows of padding and of unknown words included; None for all.
        min_freq: how often a word must occur to get a row.
        pad, unk: rows of padding and of unknown words: 0 and 1, in either order.

    Example:
        >>> Vocabulary(["a cat", "a dog"]).words
        ['<pad>', '<unk>', 'a', 'cat', 'dog']
    """

    def __init__(
        self,
        texts: Iterable[str | Sequence[str]],
        *,
        max_size: int | None = None,
        min_freq: int = 1,
        pad: int = 0,
        unk: int = 1,
    ) -> None:
        if {pad, unk} != {0, 1}:
            raise ValueError(f"pad and unk must be 0 and 1 in either order, got {pad} and {unk}")
        if max_size is not None and max_size < 3:
            raise ValueError(f"max_size must be at least 3 (two rows are special), got {max_size}")
        if min_freq < 1:
            raise ValueError(f"min_freq must be at least 1, got {min_freq}")
        from torchtext.vocab import Vocab  # lazily: it brings requests and sentencepiece with it

        counts = Counter(word for text in texts for word in _words(text))
        specials = [PAD_WORD, UNK_WORD] if pad == 0 else [UNK_WORD, PAD_WORD]
        max_words = None if max_size is None else max_size - len(specials)
        self.pad, self.unk = pad, unk
        self.words: list[str] = Vocab(counts, max_words, min_freq, specials=specials).itos
        self._rows = {word: row for row, word in enumerate(self.words)}
        # a word spelt like the padding is an unknown word, or a text could be all padding
        self._rows[PAD_WORD] = unk

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words, pad={self.pad}, unk={self.unk})"

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Return the row of each word; an empty text is one unknown word."""
        return [self._rows.get(token, self.unk) for token in tokens] or [self.unk]


def encode(texts: Sequence[str | Sequence[str]], vocabulary: Vocabulary, max_len: int) -> Tensor:
    """Number texts and pad them on the right to the longest.

    Args:
        texts: strings, which are cleaned, or lists of words.
        max_len: the most words kept of a text, from its beginning.
    Returns: int64 (N, T) with 1 <= T <= max_len; no row is padding only.
    """
    if max_len < 1:
        raise ValueError(f"max_len must be at least 1, got {max_len}")
    if not len(texts):
        raise ValueError("there are no texts to encode")
    rows = [torch.tensor(vocabulary.encode(_words(text)[:max_len])) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=vocabulary.pad)


def load_vectors(path: str | Path, vocabulary: Vocabulary, *, seed: int = 0) -> tuple[Tensor, int]:
    """Read pretrained vectors (GloVe's or fastText's text form), aligned with the vocabulary.

    A word that the file lacks gets normal numbers with mean and sd of all numbers of the file, a
    function of its row and the seed; the row of padding is zero. A word that the file holds twice
    gets the later vector.

    Args:
        path: a local file of lines `word number ... number`; a first line `count width` is allowed.
    Returns: float32 (V, E), row i for `vocabulary.words[i]`; how many rows came from the file.
    Raises:
        ValueError: a URL, an empty file, or a row of another width or with a field that is no
            finite number; names file and line.
        FileNotFoundError: there is no such file.
    """
    rows = {word.encode(): row for row, word in enumerate(vocabulary.words)}
    del rows[vocabulary.words[vocabulary.pad].encode()]
    found: dict[int, np.ndarray] = {}
    moments = np.zeros(3)  # how many numbers, their sum, the sum of their squares
    for word, vector in _read_vectors(_local_file(path)):
        moments += vector.size, vector.sum(), vector @ vector
        if word in rows:
            found[rows[word]] = vector
    mean, square = moments[1:] / moments[0]
    vectors_VE = torch.empty(len(vocabulary), vector.size)
    generator = generator_for("vectors", int(seed))
    vectors_VE.normal_(mean, max(square - mean**2, 0.0) ** 0.5, generator=generator)
    for row, values in found.items():
        vectors_VE[row] = torch.from_numpy(values)
    vectors_VE[vocabulary.pad] = 0.0
    return vectors_VE, len(found)


def _words(text: str | Sequence[str]) -> Sequence[str]:
    return clean(text) if isinstance(text, str) else text


def _local_file(path: str | Path) -> Path:
    if "://" in str(path):
        raise ValueError(f"{path}: vectors are read from a local file, not fetched; download first")
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file of word vectors")
    return Path(path)


def _read_vectors(path: Path) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield word and float64 vector of each row; words stay bytes, so that any encoding passes."""
    width, number, header = 0, 0, 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            word, *fields = line.rstrip().split(b" ")
            if number == 1 and len(fields) == 1 and word.isdigit() and fields[0].isdigit():
                width, header = int(fields[0]), 1
                continue
            width = width or len(fields)
            if not fields or len(fields) != width:
                expected = f"expected {width}" if width else "expected a word and its numbers"
                raise ValueError(f"{path}, line {number}: {len(fields)} numbers, {expected}")
            yield word, _numbers(fields, path, number)
    if number == header:
        raise ValueError(f"{path}, line {number}: the file ends before the first vector (empty)")


def _numbers(fields: list[bytes], path: Path, line: int) -> np.ndarray:
    try:
        vector = np.array(fields, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path}, line {line}: not a number: {error}") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{path}, line {line}: a number is infinite or missing")
    return vector
