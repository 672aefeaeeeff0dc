"""What is fine-tuned: pictures for the ViT, sentences for BERT, by name.

digits, cifar10, cifar100, tiny_imagenet    (N, C, H, W)                        -> class
pydocs, sst2                                (tokens_NT, segments_NT, mask_NT)   -> class
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from alkit.base.paths import root
from alkit.data.datasets import load, sentences, sst2_sentences
from alkit.data.parts import Pairs, balanced_rows, stratified_split

PICTURES = ("digits", "cifar10", "cifar100", "tiny_imagenet")
TEXTS = ("pydocs", "sst2")
WORDS = "notebooks/results/weights/tokenizer.json"  # made with BERT's weights beside it
PAD, _, CLS, SEP = range(4)  # in that file


@dataclass(frozen=True)
class Task:
    """Three parts of a data set.

    Attributes:
        classes: how many.
        tokenizer: of texts; None for pictures.
    """

    name: str
    train: Pairs
    validation: Pairs
    test: Pairs
    classes: int
    tokenizer: Tokenizer | None = None

    @property
    def image(self) -> tuple[int, int]:
        """Channels and side of the pictures."""
        return self.train.x.shape[1], self.train.x.shape[2]


def load_task(
    name: str,
    *,
    train: int | None = None,
    seed: int = 0,
    tokens: int = 32,
    tokenizer: str | Path = WORDS,
) -> Task:
    """Return a task by name.

    Args:
        train: training samples to keep, as many of each class; None for all.
        seed: of what is held out for validation.
        tokens: of a text.
        tokenizer: a file, whose relative path begins in the checkout.
    """
    if name in PICTURES:
        found = _pictures(name, seed)
    elif name in TEXTS:
        path = root() / tokenizer  # an absolute path stays as it is
        if not path.exists():
            raise FileNotFoundError(f"no tokenizer at {path}: give a file")
        found = _texts(name, seed, tokens, Tokenizer.from_file(str(path)))
    else:
        raise ValueError(f"data is {name!r}: give {', '.join(PICTURES + TEXTS)}")
    if train is None:
        return found
    return replace(found, train=found.train.take(balanced_rows(found.train.y, train, seed=seed)))


def encoded(
    texts: Sequence[str], tokenizer: Tokenizer, tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (tokens_NT, segments_NT, mask_NT): [CLS] pieces [SEP], then padding."""
    rows = torch.full((len(texts), tokens), PAD)
    for at, found in enumerate(tokenizer.encode_batch(list(texts))):
        ids = [CLS, *found.ids[: tokens - 2], SEP]
        rows[at, : len(ids)] = torch.tensor(ids)
    return rows, torch.zeros_like(rows), rows != PAD


def _pictures(name: str, seed: int) -> Task:
    """Bytes become -1 to 1, which suits pretrained vision transformers; floats stay."""
    found, pairs = load(name, seed=seed), []
    for part in (found.train, found.validation, found.test):
        x = part.x.float().div_(127.5).sub_(1.0) if part.is_bytes else part.x
        pairs.append(Pairs(x, part.y))
    return Task(name, *pairs, found.num_classes)


def _texts(name: str, seed: int, tokens: int, tokenizer: Tokenizer) -> Task:
    whole, *test = sst2_sentences() if name == "sst2" else [sentences()]
    labels, options = torch.tensor(whole["label"].to_numpy()), {"shares": (0.02,)} if test else {}
    rows_of = stratified_split(labels, seed=seed, **options)
    parts = [whole.iloc[rows.numpy()] for rows in rows_of]
    parts = [parts[1], parts[0], *test] if test else parts  # held out comes first
    pairs = (
        Pairs(encoded(own["text"], tokenizer, tokens), torch.tensor(own["label"].to_numpy()))
        for own in parts
    )
    return Task(name, *pairs, 1 + int(whole["label"].max()), tokenizer)
