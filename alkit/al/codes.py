"""Labels as codes: one row a class, shared by all samples of the class.

    one-hot y (B, C)  ->  Codes(rows (C, C), index (B,))  --g-->  Codes(rows (C, K), index (B,))

What the label side of an AL layer computes depends on the class alone, so it is computed once a
class and gathered by the samples' class numbers: the gradients are those of the plain form, whose
rows repeat, up to rounding. It also shows the codes of *all* classes to losses that compare them.

C classes, K width of the code, B batch size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from alkit.base.seeds import generator_for
from alkit.data.labels import are_shares, check_shares
from alkit.engine.messages import sendable


@sendable
class Codes(NamedTuple):
    """The codes of all classes, and which class each sample is of.

    Attributes:
        rows: float (C, K), one code a class.
        index: int64 (B,), the row of each sample; of soft labels float (B, C), its share of each.
    """

    rows: Tensor
    index: Tensor  # type: ignore[assignment]  # tuples have a method of that name

    def of(self, rows: Tensor) -> Tensor:
        """Return for each sample what `rows` (C, .) has for its class, or the mean by its shares.

        The code of a soft label is the mixture of its classes' codes.
        """
        return self.index @ rows if self.index.is_floating_point() else rows[self.index]

    def gathered(self) -> Tensor:
        """Return one row a sample, (B, K)."""
        return self.of(self.rows)


def shared(y: Tensor, *, soft: bool = False) -> Tensor | Codes:
    """Return one-hot rows (B, C) as `Codes` of all C classes; other rows as given.

    Args:
        soft: soft labels, too, become `Codes`, as losses that compare with all classes need them.
    Raises:
        ValueError: with `soft`, rows that are no shares of classes.
    """
    top, index = y.max(1)
    if not bool((top == 1).all()) or int(torch.count_nonzero(y)) != len(y):
        if not soft:
            return y
        check_shares(y)
        index = y
    return Codes(torch.eye(y.shape[1], dtype=y.dtype, device=y.device), index)


def class_codes(target: Tensor | Codes) -> Codes:
    """Return `target` as `Codes`; of plain rows (B, K), the distinct ones count as the classes.

    Raises:
        ValueError: soft labels, which would become a class each.
    """
    if isinstance(target, Codes):
        return target
    if isinstance(shared(target), Tensor) and are_shares(target):
        raise ValueError(
            "these rows look like soft labels, and this loss compares with the codes of all"
            " classes: give alkit.al.codes.shared(y, soft=True), as ALModel does"
        )
    return Codes(*torch.unique(target, dim=0, return_inverse=True))


def code_table(num_classes: int, code_dim: int, seed: int = 0) -> Tensor:
    """Return fixed codes of length 1, float (C, K): orthonormal if C <= K, else random directions.

    A function of its arguments alone.
    """
    if num_classes < 1 or code_dim < 1:
        raise ValueError(f"{num_classes} classes and codes {code_dim} wide: give 1 or more of each")
    generator = generator_for("codes", seed, num_classes, code_dim)
    directions = torch.randn(num_classes, code_dim, generator=generator)
    if num_classes > code_dim:
        return nn.functional.normalize(directions, dim=1)
    return torch.linalg.qr(directions.T)[0].T.contiguous()


class FixedEncoder(nn.Module):
    """A g without parameters: multiply by a table of codes, (., C) -> (., K)."""

    def __init__(self, table_CK: Tensor) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", table_CK)

    def forward(self, y: Tensor) -> Tensor:
        """Return the code of each row."""
        return y @ self.table


class FixedDecoder(nn.Module):
    """Its h: similarity to every class's code, (., K) -> (., C).

    Codes have length 1, so the largest score is that of the nearest code; with orthonormal codes
    this is the exact inverse.

    Args:
        scale: factor of the scores; that of the associated loss makes them its logits' size.
    """

    def __init__(self, table_CK: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", table_CK)
        self.scale = scale

    def forward(self, code: Tensor) -> Tensor:
        """Return a score a class."""
        return self.scale * (code @ self.table.T)
