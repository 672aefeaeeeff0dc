"""Labels of classes: numbers, one-hot rows, or soft rows of shares."""

import torch
import torch.nn.functional as F
from torch import Tensor


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return class numbers (B,), int64 from 0 to C - 1, as float rows (B, C)."""
    return F.one_hot(labels, num_classes).float()


def check_shares(y: Tensor) -> None:
    """Refuse rows that aren't labels of two or more classes."""
    if y.dim() != 2 or y.shape[1] < 2 or not are_shares(y):
        raise ValueError(
            f"targets {tuple(y.shape)} of {y.dtype} are no classes: give class numbers, rows of two"
            " or more shares that add up to 1; numbers to predict need mean squared errors"
        )


def are_numbers(y: Tensor) -> bool:
    """Say whether these are class numbers (B,)."""
    return y.dim() == 1 and not y.is_floating_point() and y.dtype != torch.bool


def are_shares(rows: Tensor) -> bool:
    """Say whether these rows have no negative number and add up to 1."""
    return bool((rows >= 0).all() & ((rows.sum(1).float() - 1).abs() < 0.01).all())
