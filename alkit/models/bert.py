"""BERT as a list of units, with heads for masked words and next sentences (Devlin et al. 2018).

    embedding | encoder layer | encoder layer | ... | heads

Units hand on (h_BTD, mask_BT, places_BM): the vectors, true at real tokens, and the positions of
the words to predict; for tasks without such words they hand on (h_BTD, mask_BT). B batch, T tokens,
D width, H heads, M predicted words, V vocabulary.

`bert_for_classes` and `bert_for_spans` cut every encoder layer in two:

    embedding | attention | feed-forward | attention | feed-forward | ... | pooler | scores
    embedding | attention | feed-forward | attention | feed-forward | ... | spans
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Hidden = tuple[Tensor, ...]


PUBLISHED_WIDTH, PUBLISHED_STD = 768, 0.02


def initial_std(width: int) -> float:
    """Return the published spread of initial weights, 0.02, scaled from its width of 768.

    A sum of `width` terms keeps its size with 1/sqrt(width). With 0.02 at width 64 a layer adds
    next to nothing to its input, and learns for long before it does.
    """
    return PUBLISHED_STD * math.sqrt(PUBLISHED_WIDTH / width)


class BertSizes(NamedTuple):
    """Sizes; those of BERT-base with three layers by default."""

    layers: int = 3
    width: int = 768
    heads: int = 12
    ffn: int = 3072
    vocabulary: int = 30_522
    tokens: int = 512
    segments: int = 2
    dropout: float = 0.1
    std: float = 0.02  # of initial weights; see `initial_std` for narrow networks


class Embedding(nn.Module):
    """Words, positions and segments: (tokens_BT, segments_BT, mask_BT, ...) -> hidden."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.tokens, sizes.width)
        self.segments = nn.Embedding(sizes.segments, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, inputs: tuple[Tensor, ...]) -> Hidden:
        """Return the sum of the three, normalised."""
        tokens_BT, segments_BT, *more = inputs
        at_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        h_BTD = self.words(tokens_BT) + self.segments(segments_BT) + self.positions(at_T)
        return self.dropout(self.norm(h_BTD)), *more


class Attention(nn.Module):
    """norm(h + attention(h)): the first half of an encoder layer (post-norm)."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, inputs: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        h_BTD, mask_BT, *more = inputs
        mixed_BTD = self.mix(self._attend(h_BTD, mask_BT))
        return self.norm(h_BTD + self.dropout(mixed_BTD)), mask_BT, *more

    def _attend(self, h_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        q, k, v = (self._split(each(h_BTD)) for each in (self.query, self.key, self.value))
        scores_BHTT = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores_BHTT = scores_BHTT.masked_fill(~mask_BT[:, None, None], float("-inf"))
        shares_BHTT = self.dropout(scores_BHTT.softmax(dim=-1))
        return (shares_BHTT @ v).transpose(1, 2).flatten(2)

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(2, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """norm(h + network(h)): the second half of an encoder layer (post-norm)."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(sizes.width, sizes.ffn), nn.Linear(sizes.ffn, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, inputs: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        h_BTD, *more = inputs
        fed_BTD = self.down(F.gelu(self.up(h_BTD)))
        return self.norm(h_BTD + self.dropout(fed_BTD)), *more


class EncoderLayer(nn.Sequential):
    """Attention and a feed-forward network."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__(Attention(sizes), FeedForward(sizes))


class Heads(nn.Module):
    """Scores of the words at the chosen places, (B, M, V), and of the whole text, (B, 2).

    The latter are of "next or not", as published, or of classes that the corpus has.

    Only at those places: over all of them the vocabulary would outweigh the encoder.

    Args:
        classes: of the whole text.
    """

    def __init__(self, sizes: BertSizes, classes: int = 2) -> None:
        super().__init__()
        width = sizes.width
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, classes)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.decoder = nn.Linear(width, sizes.vocabulary)

    def forward(self, inputs: Hidden) -> tuple[Tensor, Tensor]:
        """Return the words' scores and the text's."""
        h_BTD, _, places_BM = inputs
        rows_BMD = places_BM[..., None].expand(-1, -1, h_BTD.shape[2])
        chosen_BMD = self.norm(F.gelu(self.dense(h_BTD.gather(1, rows_BMD))))
        return self.decoder(chosen_BMD), self.next(torch.tanh(self.pooler(h_BTD[:, 0])))


def bert(sizes: BertSizes | None = None, *, classes: int = 2, seed: int = 0) -> list[nn.Module]:
    """Return the units: embedding, encoder layers, heads.

    Weights are drawn from a normal distribution with standard deviation `sizes.std`.

    Args:
        classes: of the whole text, see `Heads`.
    """
    sizes = sizes or BertSizes()
    if sizes.width % sizes.heads:
        raise ValueError(f"width {sizes.width} does not divide into {sizes.heads} heads")
    torch.manual_seed(seed)
    embedding = Embedding(sizes)
    layers = [EncoderLayer(sizes) for _ in range(sizes.layers)]
    return _initialised([embedding, *layers, Heads(sizes, classes)], sizes.std)


class Pooler(nn.Module):
    """tanh of a linear map of the first token: (B, T, D) -> (B, D)."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(sizes.width, sizes.width), nn.Dropout(sizes.dropout)

    def forward(self, inputs: Hidden) -> Tensor:
        """Return the pooled vectors."""
        return self.dropout(torch.tanh(self.dense(inputs[0][:, 0])))


class Spans(nn.Module):
    """Scores of every token as an answer's first and last one: (B, T, D) -> (B, T, 2).

    Tokens that are padding get the lowest score there is.
    """

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.scores = nn.Linear(sizes.width, 2)

    def forward(self, inputs: Hidden) -> Tensor:
        """Return the scores."""
        h_BTD, mask_BT, *_ = inputs
        scores_BT2 = self.scores(h_BTD)
        return scores_BT2.masked_fill(~mask_BT[..., None], torch.finfo(scores_BT2.dtype).min)


def bert_for_classes(sizes: BertSizes, classes: int, *, seed: int = 0) -> list[nn.Module]:
    """Return the units of a classifier of texts; they take (tokens_BT, segments_BT, mask_BT)."""
    return _halves(sizes, seed, lambda: [Pooler(sizes), nn.Linear(sizes.width, classes)])


def bert_for_spans(sizes: BertSizes, *, seed: int = 0) -> list[nn.Module]:
    """Return the units that mark answers; they take (tokens_BT, segments_BT, mask_BT)."""
    return _halves(sizes, seed, lambda: [Spans(sizes)])


def _halves(sizes: BertSizes, seed: int, tail: Callable[[], list[nn.Module]]) -> list[nn.Module]:
    """Return embedding, both halves of every layer, and the tail, as units of their own."""
    embedding, *layers, _ = bert(sizes, seed=seed)
    units = _initialised(tail(), sizes.std)
    return [embedding, *(half for layer in layers for half in layer.children()), *units]


def span_loss(scores_BT2: Tensor, places_B2: Tensor) -> Tensor:
    """Return the mean cross-entropy of the answers' first and last tokens."""
    first, last = (F.cross_entropy(scores_BT2[..., end], places_B2[:, end]) for end in (0, 1))
    return (first + last) / 2


def _initialised(units: list[nn.Module], std: float) -> list[nn.Module]:
    """Draw the weights of the units, one after the other."""
    for module in (module for unit in units for module in unit.modules()):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return units
