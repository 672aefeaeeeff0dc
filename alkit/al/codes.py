"""Labels as codes: one row a class, shared by all samples of the class; a loss on all of them.

    one-hot y (B, C)  ->  Codes(rows (C, C), index (B,))  --g-->  Codes(rows (C, K), index (B,))

The output of the label side of an AL layer depends only on the class. So it is computed once a
class and gathered by the class numbers of samples. Up to rounding, the gradients are those of the
plain form, whose rows repeat. It also shows the codes of *all* classes to losses that compare them.

C classes, K width of the code, B batch size.
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.seeds import generator_for
from alkit.data.labels import are_shares, check_shares


class Codes(NamedTuple):
    """The codes of all classes, and which class each sample is of.

    The index is int64 (B,), the row of each sample; of soft labels float (B, C), its share of each.
    """

    rows: Tensor  # float (C, K), one code a class
    index: Tensor  # type: ignore[assignment]  # tuples have a method of that name

    def of(self, rows: Tensor) -> Tensor:
        """Return the row of (C, .) for the class of each sample, or the mean by its shares."""
        return self.index @ rows if self.index.is_floating_point() else rows[self.index]

    def gathered(self) -> Tensor:
        """Return one row a sample, (B, K)."""
        return self.of(self.rows)


torch.serialization.add_safe_globals([Codes])  # they travel between ranks


def shared(y: Tensor, *, soft: bool = False) -> Tensor | Codes:
    """Return one-hot rows (B, C) as `Codes` of all C classes; other rows as given.

    Args:
        soft: soft labels, too, become `Codes`, as losses that compare with all classes need them.
    """
    top, index = y.max(1)
    if not bool((top == 1).all()) or int(torch.count_nonzero(y)) != len(y):
        if not soft:
            return y
        check_shares(y)
        index = y
    return Codes(torch.eye(y.shape[1], dtype=y.dtype, device=y.device), index)


def class_codes(target: Tensor | Codes) -> Codes:
    """Return `target` as `Codes`; of plain rows (B, K), the distinct ones count as the classes."""
    if isinstance(target, Codes):
        return target
    if isinstance(shared(target), Tensor) and are_shares(target):
        said = "give alkit.al.codes.shared(y, soft=True), as ALModel does"
        raise ValueError(f"soft labels, of which each would be a class to this loss: {said}")
    return Codes(*torch.unique(target, dim=0, return_inverse=True))


def code_table(num_classes: int, code_dim: int, seed: int = 0) -> Tensor:
    """Return fixed codes of length 1, (C, K): orthonormal if C <= K, else random directions."""
    generator = generator_for("codes", seed, num_classes, code_dim)
    shape, dtype = (num_classes, code_dim), torch.float32
    directions = torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
    if num_classes > code_dim:
        return F.normalize(directions, dim=1)
    return torch.linalg.qr(directions.T)[0].T.contiguous()


class FixedEncoder(nn.Module):
    """A g without parameters: multiply by a table of codes, (., C) -> (., K)."""

    def __init__(self, table_CK: Tensor) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", table_CK)
        self.in_features = len(table_CK)

    def forward(self, y: Tensor) -> Tensor:
        """Return the code of each row."""
        return y @ self.table


class FixedDecoder(nn.Module):
    """Its h: similarity to every class's code, (., K) -> (., C), largest at the nearest code."""

    def __init__(self, table_CK: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", table_CK)
        self.scale = scale

    def forward(self, code: Tensor) -> Tensor:
        """Return a score a class."""
        return self.scale * (code @ self.table.T)


@dataclass(frozen=True)
class Contrast:
    """Cross-entropy over similarities between output of the bridge and the codes of all classes.

    Where codes lie near each other, as those of an untrained label encoder do, mean squared error
    is small before anything is learned; the choice of the nearest code does not fade so.

    Similarity is scale x cosine, or the plain product with `cosine=False`. Called with (m, target):
    m (B, K), target `Codes` or rows (B, K), whose distinct rows then count as the classes.

    Args:
        scale: factor of the similarities, the inverse of a temperature.
        smoothing: label smoothing, the share of the target spread over all classes.
        centred: take the mean of the codes of all classes off first. Learned codes begin with most
            of their length in common, which no bridge can tell classes by.
    """

    scale: float = 10.0
    _: KW_ONLY
    cosine: bool = True
    smoothing: float = 0.0
    centred: bool = False
    takes_codes: ClassVar = True  # give it Codes where there are any, not a gathered row a sample

    def __call__(self, m: Tensor, target: Tensor | Codes) -> Tensor:
        """Return the mean over the batch, a scalar."""
        codes = class_codes(target)
        scores_BC = self.scores(m, codes.rows)
        return F.cross_entropy(scores_BC, codes.index, label_smoothing=self.smoothing)

    def scores(self, m: Tensor, rows: Tensor) -> Tensor:
        """Return the similarities (B, C) of m (B, K) with the codes of all classes, rows (C, K)."""
        if self.centred:
            rows = rows - rows.mean(0)
        if self.cosine:
            m, rows = F.normalize(m, dim=1), F.normalize(rows, dim=1)
        return self.scale * (m @ rows.T)


def takes_codes(loss: object) -> bool:
    """Say whether a loss wants `Codes` of all classes, instead of a row a sample."""
    return getattr(loss, "takes_codes", False)
