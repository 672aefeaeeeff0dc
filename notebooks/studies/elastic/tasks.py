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
from alkit.data.parts import Pairs, Part, balanced_rows, stratified_split

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
        found = _texts(name, seed, tokens, _read(tokenizer))
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
    found = load(name, seed=seed)
    parts = (found.train, found.validation, found.test)
    return Task(name, *(Pairs(_floats(part), part.y) for part in parts), found.num_classes)


def _floats(part: Part) -> Tensor:
    """Bytes become -1 to 1, which suits pretrained vision transformers; floats stay."""
    return part.x.float().div_(127.5).sub_(1.0) if part.is_bytes else part.x


def _texts(name: str, seed: int, tokens: int, tokenizer: Tokenizer) -> Task:
    if name == "sst2":
        whole, test = sst2_sentences()
        held, kept = stratified_split(
            torch.tensor(whole["label"].to_numpy()), seed=seed, shares=(0.02,)
        )
        parts = [whole.iloc[kept.numpy()], whole.iloc[held.numpy()], test]
    else:
        whole = sentences()
        rows_of = stratified_split(torch.tensor(whole["label"].to_numpy()), seed=seed)
        parts = [whole.iloc[rows.numpy()] for rows in rows_of]
    pairs = (
        Pairs(encoded(own["text"], tokenizer, tokens), torch.tensor(own["label"].to_numpy()))
        for own in parts
    )
    return Task(name, *pairs, 1 + int(whole["label"].max()), tokenizer)


def _read(tokenizer: str | Path) -> Tokenizer:
    path = root() / tokenizer  # an absolute path stays as it is
    if not path.exists():
        raise FileNotFoundError(f"no tokenizer at {path}: give a file")
    return Tokenizer.from_file(str(path))
