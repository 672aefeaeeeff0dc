"""Data sets as plain data: parts, batches, and the sets that come with the installed packages.

Shapes: N samples, B samples of a batch, T tokens, K classes, C, H, W image.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from alkit.rng import generator_for
from alkit.text import Vocabulary

__all__ = ["Batches", "DataSet", "Part", "load", "stratified_split"]

Inputs = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Part:
    """Hold the samples of one split.

    Args:
        x: images, float (N, ...); or texts, int64 (N, T), padded on the right with `pad`.
        y: labels, integers (N,) in 0..num_classes - 1; kept as an int64 tensor.
    Raises:
        ValueError: no samples, x and y of different lengths, a label that is no integer or out of
            range, a text that is all padding or has padding before a token; names the first.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    _: KW_ONLY
    pad: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", _checked_labels(self.y, self.num_classes))
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} samples but {len(self.y)} labels")
        if not (self.is_text or self.x.is_floating_point()):
            raise ValueError(
                f"x must be floats (images) or int64 (N, T) (texts), got {_kind(self.x)}"
            )
        if self.is_text:
            _check_padding(self.x != self.pad)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_text(self) -> bool:
        """Say whether the samples are rows of token ids."""
        return self.x.dtype == torch.int64 and self.x.dim() == 2

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> "Batches":
        """Return the mini-batches of one epoch; their order depends on (seed, epoch) alone.

        Raises:
            ValueError: `batch_size` below 1, or no batch left because of `drop_last`.
        """
        return Batches(self, batch_size, seed, epoch, shuffle, drop_last)


@dataclass(frozen=True, eq=False)
class Batches:
    """Yield (inputs, y_onehot) of a part's mini-batches, the same ones at each iteration.

    Inputs are float (B, C, H, W) for images; for texts (tokens_BT, mask_BT), the mask true at
    tokens, both cut to the longest text of the batch. y_onehot is float32 (B, K).
    """

    part: Part
    batch_size: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not len(self):
            raise ValueError(
                f"no batch: {len(self.part)} samples do not fill one of {self.batch_size}"
                " and drop_last is set"
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.part), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        chunks = self._order().split(self.batch_size)
        return (self._batch(rows) for rows in chunks[: len(self)])

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.part))
        generator = generator_for("shuffle", int(self.seed), int(self.epoch))
        return torch.randperm(len(self.part), generator=generator)

    def _batch(self, rows_B: Tensor) -> tuple[Inputs, Tensor]:
        x, y_BK = self.part.x[rows_B], one_hot(self.part.y[rows_B], self.part.num_classes).float()
        if not self.part.is_text:
            return x, y_BK
        mask_BT = x != self.part.pad
        longest = int(mask_BT.sum(dim=1).max())
        return (x[:, :longest].contiguous(), mask_BT[:, :longest].contiguous()), y_BK


@dataclass(frozen=True, eq=False)
class DataSet:
    """Hold the three parts of a data set and what its labels mean.

    `vocabulary` is None for images; `note` says what differs from the set as published here.
    """

    name: str
    train: Part
    validation: Part
    test: Part
    num_classes: int
    class_names: tuple[str, ...]
    vocabulary: Vocabulary | None = None
    note: str = ""

    def describe(self) -> str:
        """Return one line with the sizes."""
        sizes = f"{len(self.train)} train, {len(self.validation)} validation, {len(self.test)} test"
        sample = "x".join(str(size) for size in self.train.x.shape[1:])
        kind = f"texts of up to {sample} tokens" if self.train.is_text else f"images {sample}"
        words = f"; vocabulary {len(self.vocabulary)}" if self.vocabulary else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.name}: {sizes}; {self.num_classes} classes; {kind}{words}{note}"


def load(name: str, *, seed: int = 0, **options: Any) -> DataSet:
    """Load an embedded data set; nothing is fetched, and the split depends on the seed alone.

    "digits": 1,797 handwritten digits (1, 8, 8) of scikit-learn; no options.
    "pydocs": 6,000 sentences of docstrings, label = package; options in `alkit.pydocs.load_pydocs`.

    Raises:
        ValueError: there is no data set of that name.

    Example:
        >>> load("digits").describe()
        'digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8'
    """
    loaders: dict[str, Callable[..., DataSet]] = {"digits": _load_digits, "pydocs": _load_pydocs}
    if name not in loaders:
        raise ValueError(f"no data set {name!r}; there are {', '.join(sorted(loaders))}")
    return loaders[name](seed=seed, **options)


def stratified_split(
    labels: Tensor, *, seed: int, train: float = 0.6, validation: float = 0.2
) -> tuple[Tensor, Tensor, Tensor]:
    """Deal the sample numbers to train, validation and test, class by class in these shares.

    Returns: three int64 tensors, each in increasing order; what train and validation leave is test.
    """
    dealt: tuple[list[Tensor], ...] = ([], [], [])
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        generator = generator_for("split", int(seed), int(label))
        rows = rows[torch.randperm(len(rows), generator=generator)]
        sizes = round(train * len(rows)), round(validation * len(rows))
        parts = rows.split([*sizes, len(rows) - sum(sizes)])
        for pile, part in zip(dealt, parts, strict=True):
            pile.append(part)
    first, second, third = (torch.cat(pile).sort().values for pile in dealt)
    return first, second, third


def _load_digits(*, seed: int) -> DataSet:
    """Load scikit-learn's digits: 1,078 training, 359 validation and 360 test images.

    Pixels are scaled to [0, 1], then standardised with mean and sd of the training part.
    """
    from sklearn.datasets import load_digits  # lazily: it takes a second

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().div(16.0).unsqueeze(1)
    y = torch.from_numpy(bunch.target).long()
    rows = stratified_split(y, seed=seed)
    train_x = x[rows[0]]
    x = (x - train_x.mean()) / train_x.std()
    parts = (Part(x[part], y[part], 10) for part in rows)
    return DataSet("digits", *parts, 10, tuple(str(digit) for digit in range(10)))


def _load_pydocs(*, seed: int, **options: int) -> DataSet:
    from alkit.pydocs import load_pydocs  # it imports this module

    return load_pydocs(seed=seed, **options)


def _checked_labels(labels: Tensor | Sequence[int], num_classes: int) -> Tensor:
    y_N = torch.as_tensor(labels)
    if y_N.dim() != 1 or not len(y_N):
        raise ValueError(f"a part needs labels (N,) with N >= 1, got {_kind(y_N)}")
    whole = (
        y_N == y_N.round() if y_N.is_floating_point() else torch.ones_like(y_N, dtype=torch.bool)
    )
    bad = ~whole | (y_N < 0) | (y_N >= num_classes)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"label {first} is {y_N[first].item()}; labels are integers from 0 to {num_classes - 1}"
        )
    return y_N.long()


def _check_padding(mask_NT: Tensor) -> None:
    """Refuse texts without a token, and padding that is not on the right."""
    empty = ~mask_NT.any(dim=1)
    if empty.any():
        row = int(empty.nonzero()[0])
        raise ValueError(f"text {row} is all padding; encode an empty text as one unknown token")
    gap = (mask_NT[:, 1:] & ~mask_NT[:, :-1]).any(dim=1)
    if gap.any():
        raise ValueError(
            f"text {int(gap.nonzero()[0])} has padding before a token; pad on the right"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
