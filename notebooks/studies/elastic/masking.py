"""Examples for BERT's two tasks: words to restore, and whether one text follows another.

    [CLS] some words of a document [SEP] the words that follow, or words of another document [SEP]

15 % of the words are to be restored; of these 80 % are shown as [MASK], 10 % as another word and
10 % as they are. In half of the examples the second text is the true next one. Every choice is a
function of (seed, epoch, example), never of timing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from alkit.data.prose import Documents
from alkit.data.seeds import seed_for
from alkit.data.wordpiece import CLS, MASK, SEP, SPECIAL, Tokenizer

SHARE = 0.15  # of the words, to be restored
IGNORED = -100


class Pairs(NamedTuple):
    """Examples as tensors: N of them, T tokens, M words to restore."""

    tokens_NT: Tensor
    segments_NT: Tensor
    mask_NT: Tensor
    places_NM: Tensor
    words_NM: Tensor
    is_next_N: Tensor


@dataclass
class MaskedPairs:
    """A corpus of documents, ready to be cut into examples.

    Args:
        documents: sentences by document, see `alkit.data.prose`.
        tokens: length of an example, special pieces included.
        seed: of all choices.
        pairs: two texts per example; False for one, as long as fits, with nothing that follows.
        labels: of texts that are no pairs, by document: they stand in the place of `is_next_N`.
    """

    documents: Documents
    tokenizer: Tokenizer
    tokens: int = 128
    seed: int = 0
    pairs: bool = True
    labels: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.tokens < 8:
            raise ValueError(f"tokens is {self.tokens}: an example needs 8 or more")
        if len(self.documents) < 2:
            raise ValueError("one document: a second one is needed for texts that do not follow")
        if self.labels is not None and (self.pairs or len(self.labels) != len(self.documents)):
            raise ValueError(
                f"{len(self.labels)} labels for {len(self.documents)} documents: give one each, and"
                " pairs=False"
            )
        encoded = [self.tokenizer.encode_batch(sentences) for sentences in self.documents]
        self.pieces = [[each.ids for each in sentences] for sentences in encoded]
        self.most = max(1, round(SHARE * (self.tokens - 3)))

    def batches(
        self, size: int, epoch: int = 0
    ) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]]:
        """Yield an epoch's batches ((tokens, segments, mask, places), (words, is_next)).

        A last, smaller batch is dropped.

        Raises:
            ValueError: the corpus does not fill one batch.
        """
        pairs = self.epoch(epoch)
        count = len(pairs.tokens_NT)
        if count < size:
            raise ValueError(f"{count} examples do not fill a batch of {size}")
        order = np.random.default_rng(seed_for(self.seed, "order", epoch)).permutation(count)
        for at in range(0, count - size + 1, size):
            rows = torch.from_numpy(order[at : at + size])
            *x, words, is_next = (tensor[rows] for tensor in pairs)
            yield tuple(x), (words, is_next)

    def epoch(self, epoch: int = 0) -> Pairs:
        """Return all examples of an epoch: every sentence is in about one of them."""
        rng = np.random.default_rng(seed_for(self.seed, "pairs", epoch))
        rows = [
            self._example(first, second, follows, rng)
            for document in range(len(self.pieces))
            for first, second, follows in self._cuts(document, rng)
        ]
        columns = zip(*rows, strict=True)
        tokens, segments, mask, places, words, follows = (
            torch.from_numpy(np.stack(c)) for c in columns
        )
        return Pairs(tokens, segments, mask, places, words, follows)

    def _cuts(
        self, document: int, rng: np.random.Generator
    ) -> Iterator[tuple[list[int], list[int], int]]:
        """Yield (first text, second text, whether it follows) from a document's sentences.

        Or, without pairs, (text, nothing, label).
        """
        room, chunk, length = self.tokens - 3, [], 0
        sentences = self.pieces[document]
        for number, sentence in enumerate(sentences):
            chunk.append(sentence)
            length += len(sentence)
            if length < room and number < len(sentences) - 1:
                continue
            if not self.pairs:
                yield _joined(chunk), [], self.labels[document] if self.labels else 0
            elif len(chunk) > 1:
                cut = int(rng.integers(1, len(chunk)))
                follows = bool(rng.random() < 0.5)
                second = _joined(chunk[cut:]) if follows else self._elsewhere(document, rng)
                yield _joined(chunk[:cut]), second, follows
            chunk, length = [], 0

    def _elsewhere(self, document: int, rng: np.random.Generator) -> list[int]:
        """Return words of another document, from a sentence drawn at random on."""
        other = int(rng.integers(len(self.pieces) - 1))
        sentences = self.pieces[other + (other >= document)]
        return _joined(sentences[int(rng.integers(len(sentences))) :])

    def _example(
        self, first: list[int], second: list[int], follows: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, ...]:
        room = self.tokens - 3
        half = room // 2
        # the longer of the two gives way
        keep = min(len(first), max(half, room - len(second)))
        first, second = first[:keep], second[: room - keep]
        written = [CLS, *first, SEP, *second, SEP] if self.pairs else [CLS, *first, SEP]
        tokens = np.zeros(self.tokens, np.int64)
        tokens[: len(written)] = written
        segments = np.zeros(self.tokens, np.int64)
        segments[len(first) + 2 : len(written)] = 1
        places, words = self._hide(tokens, len(written), rng)
        mask = np.arange(self.tokens) < len(written)
        return tokens, segments, mask, places, words, np.array(follows, np.int64)

    def _hide(
        self, tokens: np.ndarray, length: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Change the tokens that are to be restored; return their places and what they were."""
        candidates = np.flatnonzero(tokens[:length] >= len(SPECIAL))
        count = min(len(candidates), self.most, max(1, round(SHARE * len(candidates))))
        chosen = np.sort(rng.permutation(candidates)[:count])
        places = np.zeros(self.most, np.int64)
        words = np.full(self.most, IGNORED, np.int64)
        places[:count], words[:count] = chosen, tokens[chosen]
        for at in chosen:
            kind = rng.random()
            if kind < 0.8:
                tokens[at] = MASK
            elif kind < 0.9:
                tokens[at] = rng.integers(len(SPECIAL), self.tokenizer.get_vocab_size())
        return places, words


def _joined(sentences: Sequence[Sequence[int]]) -> list[int]:
    return [piece for sentence in sentences for piece in sentence]
