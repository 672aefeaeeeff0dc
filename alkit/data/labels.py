"""Labels of classes: numbers, one-hot rows, or soft rows of shares."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def in_order(classes: Iterable[Any]) -> list[Any]:
    """Return what labels there are, each once: numbers as numbers, also as text, else as text."""
    found = set(classes)
    if all(isinstance(each, Real) for each in found):
        return sorted(found)
    if all(isinstance(each, str) and each.isdecimal() for each in found):
        return sorted(found, key=lambda each: (int(each), each))
    return sorted(found, key=str)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return class numbers (B,) as float rows (B, C).

    Raises:
        ValueError: a label is not an integer in 0 .. C - 1; the first such is named.
    """
    if labels.dim() != 1 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers of shape (B,), got {labels.dtype} of {tuple(labels.shape)}"
        )
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise ValueError(
            f"label {int(labels[at])} at position {at} is out of range: with {num_classes} classes,"
            f" labels are 0 to {num_classes - 1}"
        )
    return F.one_hot(labels.long(), num_classes).float()


def check_shares(y: Tensor) -> None:
    """Refuse rows that are no labels of classes.

    Raises:
        ValueError: fewer than two classes, or rows that do not add up to 1.
    """
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
    whole = torch.ones(len(rows), dtype=torch.float32, device=rows.device)
    return bool((rows >= 0).all()) and torch.allclose(rows.sum(1).float(), whole, atol=1e-2)
