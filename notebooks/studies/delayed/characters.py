"""A causal character model as a list of units, and running text as its data.

    embedding | layer | layer | ... | scores

Units hand on h_BTD: B texts, T characters, D width; the last one returns scores_BTV over V
characters. Layers are torch's own, normed first, under a causal mask (Radford et al. 2019).
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.seeds import generator_for
from alkit.engine.modes import evaluating
from studies.delayed.prose import Documents

UNKNOWN = 0  # the number of every character that the alphabet lacks


class Sizes(NamedTuple):
    """Sizes of a character model."""

    layers: int = 3
    width: int = 64
    heads: int = 4
    context: int = 64
    dropout: float = 0.1


class Embedding(nn.Module):
    """Characters and their positions: ids_BT -> h_BTD."""

    def __init__(self, sizes: Sizes, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=sizes.width**-0.5)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return the sum of both."""
        at_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        return self.dropout(self.characters(ids_BT) + self.positions(at_T))


class Layer(nn.TransformerEncoderLayer):
    """Attention to what came before, and a feed-forward network: (B, T, D) -> (B, T, D)."""

    def __init__(self, sizes: Sizes) -> None:
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        super().__init__(sizes.width, sizes.heads, 4 * sizes.width, sizes.dropout, **options)

    def forward(self, h_BTD: Tensor) -> Tensor:  # type: ignore[override]
        """Return the layer's output; a place sees itself and those before it."""
        mask_TT = nn.Transformer.generate_square_subsequent_mask(
            h_BTD.shape[1], device=h_BTD.device, dtype=h_BTD.dtype
        )
        return super().forward(h_BTD, mask_TT, is_causal=True)


def character_model(sizes: Sizes, characters: int, seed: int = 0) -> list[nn.Module]:
    """Return the units, with initial weights that depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [Layer(sizes) for _ in range(sizes.layers)]
        scores = nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, characters))
        return [Embedding(sizes, characters), *layers, scores]


def next_loss(scores_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next characters, in nats."""
    return F.cross_entropy(scores_BTV.flatten(0, 1), ids_BT.flatten())


next_loss.reduction = "mean"  # type: ignore[attr-defined]  # so it may be cut into micro-batches


class Alphabet:
    """Characters by number: those of a text that occur often enough; 0 is any other.

    Args:
        least: occurrences in the text.
    """

    def __init__(self, text: str, least: int = 10) -> None:
        known = sorted(each for each, count in Counter(text).items() if count >= least)
        self.numbers = {each: number for number, each in enumerate(known, UNKNOWN + 1)}

    def __len__(self) -> int:
        return len(self.numbers) + 1

    def encode(self, text: str) -> Tensor:
        """Return the characters' numbers, int64 (N,)."""
        return torch.tensor([self.numbers.get(each, UNKNOWN) for each in text])


def joined_text(documents: Documents) -> str:
    """Return documents as one text: a blank between sentences, a line a document."""
    return "\n".join(" ".join(sentences) for sentences in documents)


def batches(
    ids_N: Tensor, *, size: int, context: int, steps: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw windows of a text: pairs (ids_BT, the same moved on by one character)."""
    places = len(ids_N) - context
    if places < 1:
        raise ValueError(f"a text of {len(ids_N)} characters: give more than {context}, a window")
    generator = generator_for("windows", seed)
    for _ in range(steps):
        starts_B = torch.randint(places, (size,), generator=generator)
        windows = ids_N[starts_B[:, None] + torch.arange(context + 1)]
        yield windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def article_losses(
    model: nn.Module, articles: Sequence[Tensor], context: int, batch_size: int = 256
) -> list[float]:
    """Return for each article the mean loss of its characters, in nats, in evaluation mode.

    An article is cut into windows of `context` characters; what is left over at its end is not
    looked at, nor is an article that has no whole window.
    """
    found = []
    with evaluating(model):
        for ids_N in articles:
            whole = (len(ids_N) - 1) // context * context
            if not whole:
                continue
            x, y = (part.unflatten(0, (-1, context)) for part in (ids_N[:whole], ids_N[1:][:whole]))
            parts = zip(x.split(batch_size), y.split(batch_size), strict=True)
            total = sum(next_loss(model(a), b).item() * a.numel() for a, b in parts)
            found.append(total / whole)
    return found


def unigram_loss(train_N: Tensor, other_N: Tensor, characters: int) -> float:
    """Return the loss of a model that knows how often characters occur, and nothing else."""
    counts_V = torch.bincount(train_N, minlength=characters) + 1
    scores_V = counts_V.double().log() - math.log(int(counts_V.sum()))
    return -float(scores_V[other_N].mean())
