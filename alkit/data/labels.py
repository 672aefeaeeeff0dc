"""Labels of classes: words, numbers, one-hot rows, or soft rows of shares."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Words = dict[Any, int]  # classes that are words, with their numbers


def numbered(labels: Sequence[Any], words: Words) -> Tensor:
    """Return the class numbers (N,) of words, in their order; numbers, also as text, in theirs.

    `words` is filled if it is empty.
    """
    if not words:
        key: Any = int if all(str(each).isdecimal() for each in labels) else None
        words |= {word: at for at, word in enumerate(sorted(sorted(set(labels)), key=key))}
    if unknown := [word for word in labels if word not in words]:
        raise ValueError(f"labels {unknown[:5]} are not in the training part's {[*words][:10]}")
    return torch.tensor([words[word] for word in labels])


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return class numbers (B,), int64 from 0 to C - 1, as float rows (B, C)."""
    return F.one_hot(labels, num_classes).float()


def check_shares(y: Tensor) -> None:
    """Refuse rows that are no labels of two or more classes."""
    if y.dim() != 2 or y.shape[1] < 2 or not are_shares(y):
        raise ValueError(
            "labels must be class numbers, one-hot rows or soft labels (rows of two or more shares"
            f" that add up to 1) for a loss that compares classes, got {tuple(y.shape)} with"
            f" {y[0].tolist()} at first: numbers to predict need mean squared errors"
        )


def are_numbers(y: Tensor) -> bool:
    """Say whether these are class numbers (B,)."""
    return y.dim() == 1 and not y.is_floating_point() and y.dtype != torch.bool


def are_shares(rows: Tensor) -> bool:
    """Say whether these rows have no negative number and add up to 1."""
    return bool((rows >= 0).all() & ((rows.sum(1).float() - 1).abs() < 0.01).all())
