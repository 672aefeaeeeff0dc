"""Data as plain tensors: parts, mini-batches, data sets, and how samples are dealt to parts.

Shapes: N samples, B samples of a batch, T tokens, K classes, C, H, W image.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from alkit.base.arguments import Brief, check_whole
from alkit.base.seeds import generator_for
from alkit.data import augment as augmentation
from alkit.data.text import Vocabulary

Inputs = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Part(Brief):
    """Hold the samples of one split.

    Args:
        x: images, float (N, ...) or uint8 (N, C, H, W); or texts, int64 (N, T), padded on the
            right with `pad`.
        y: labels (N,) from 0 to num_classes - 1.
        mean, std: for uint8 images, C numbers each; batches are float ((x / 255 - mean) / std).
        augment: how images of shuffled batches are changed, see `batches`.
    Raises:
        ValueError: no samples, x and y of different lengths, a label out of range; bytes without
            mean and std.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    _: KW_ONLY
    pad: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: str = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", torch.as_tensor(self.y).long())
        kind = f"{self.x.dtype} of {tuple(self.x.shape)}"
        if not len(self.x) == len(self.y) > 0:
            raise ValueError(f"{len(self.x)} samples and {len(self.y)} labels: give as many")
        bad = (self.y < 0) | (self.y >= self.num_classes)
        if bad.any():
            raise ValueError(f"labels are from 0 to {self.num_classes - 1}, got {self.y[bad][0]}")
        if not (self.is_text or self.is_bytes or self.x.is_floating_point()):
            raise ValueError(f"x is {kind}: give floats, uint8 (N, C, H, W), or int64 (N, T)")
        if self.is_bytes and not len(self.mean or ()) == len(self.std or ()) == self.x.shape[1]:
            raise ValueError(f"x is {kind}: give mean and std of each channel")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_text(self) -> bool:
        """Say whether the samples are rows of token ids."""
        return self.x.dtype == torch.int64 and self.x.dim() == 2

    @property
    def is_bytes(self) -> bool:
        """Say whether the samples are images of one byte a colour."""
        return self.x.dtype == torch.uint8 and self.x.dim() == 4

    def take(self, rows: Tensor) -> "Part":
        """Return the part of these samples."""
        return replace(self, x=self.x[rows], y=self.y[rows])

    def floats(self) -> "Part":
        """Return the part with images of bytes as the floats that its batches hold."""
        if not self.is_bytes:
            return self
        return replace(self, x=_scaled(self.x.float().div_(255), self), mean=None, std=None)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        augment: str | None = None,
    ) -> "Batches":
        """Return the mini-batches of one epoch; their order depends on (seed, epoch) alone.

        Args:
            augment: default the part's own where batches are shuffled. For images, "weak" (crop
                after padding by 4, horizontal flip), "strong" (weak, colour jitter, grey), "edge"
                (weak, the border repeated instead of zeros) or "edge_crop" (that without flips); a
                function of (seed, epoch, number of the batch).
        Raises:
            ValueError: `batch_size` below 1, no batch left because of `drop_last`, or an `augment`
                that such samples cannot have.
        """
        augment = (self.augment if shuffle else "none") if augment is None else augment
        return Batches(self, batch_size, seed, epoch, shuffle, drop_last, augment)


@dataclass(frozen=True, eq=False, repr=False)
class Batches(Brief):
    """Yield (inputs, class numbers) of a part's mini-batches, the same ones at each iteration.

    Inputs are float (B, C, H, W) for images; for texts (tokens_BT, mask_BT), the mask true at
    tokens, both cut to the longest text of the batch. Class numbers are int64 (B,).
    """

    part: Part
    batch_size: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    drop_last: bool = False
    augment: str = "none"

    def __post_init__(self) -> None:
        check_whole(batch_size=self.batch_size)
        augmentation.check(self.augment, self.part.x)
        if not len(self):
            raise ValueError(
                f"no batch: {len(self.part)} samples do not fill one of {self.batch_size}"
                " and drop_last is set"
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.part), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        chunks = self._order().split(self.batch_size)
        return (self._batch(number, rows) for number, rows in enumerate(chunks[: len(self)]))

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.part))
        generator = generator_for("shuffle", int(self.seed), int(self.epoch))
        return torch.randperm(len(self.part), generator=generator)

    def _batch(self, number: int, rows_B: Tensor) -> tuple[Inputs, Tensor]:
        x, y_B = self.part.x[rows_B], self.part.y[rows_B]
        if not self.part.is_text:
            return self._images(number, x), y_B
        mask_BT = x != self.part.pad
        longest = int(mask_BT.sum(dim=1).max())
        return (x[:, :longest].contiguous(), mask_BT[:, :longest].contiguous()), y_B

    def _images(self, number: int, x: Tensor) -> Tensor:
        """Augment and scale; cropping bytes before they become floats moves a quarter as much."""
        if self.augment != "none":
            generator = generator_for("augment", int(self.seed), int(self.epoch), number)
            x = augmentation.crop_and_flip(x, generator, self.augment)
        if not self.part.is_bytes:
            return x
        x = x.float().div_(255)
        if self.augment == "strong":
            x = augmentation.colours(x, generator)
        return _scaled(x, self.part)


@dataclass(frozen=True, eq=False, repr=False)
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

    def subset(
        self,
        train: int | None = None,
        validation: int | None = None,
        test: int | None = None,
        *,
        seed: int = 0,
    ) -> "DataSet":
        """Keep so many samples of each part (None: all), as many of each class as it allows.

        Raises:
            ValueError: a number below 1 or above what the part holds; names the part.
        """
        sizes = {"train": train, "validation": validation, "test": test}
        parts: dict[str, Any] = {
            name: _balanced(getattr(self, name), size, name, seed)
            for name, size in sizes.items()
            if size is not None
        }
        if not parts:
            return self
        cut = ", ".join(f"{len(part)} of {len(getattr(self, n))} {n}" for n, part in parts.items())
        note = f"{self.note}; subset: {cut}" if self.note else f"subset: {cut}"
        return replace(self, note=note, **parts)

    def augmented(self, kind: str) -> "DataSet":
        """Return the set with training images that change by a `kind` of `Part.batches`."""
        augmentation.check(kind, self.train.x)
        note = self.note if kind == "none" else f"{self.note}; augmented: {kind}".lstrip("; ")
        return replace(self, train=replace(self.train, augment=kind), note=note)

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """Return one line with the sizes."""
        sizes = f"{len(self.train)} train, {len(self.validation)} validation, {len(self.test)} test"
        sample = "x".join(str(size) for size in self.train.x.shape[1:])
        kind = f"texts of up to {sample} tokens" if self.train.is_text else f"images {sample}"
        words = f"; vocabulary {len(self.vocabulary)}" if self.vocabulary else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.name}: {sizes}; {self.num_classes} classes; {kind}{words}{note}"


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


def hold_out(labels: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the sample numbers that stay and those held out: a share of each class.

    Raises:
        ValueError: the share is not above 0 and below 1, or so small or large that a side is empty.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share held out must be above 0 and below 1, got {share}")
    held, _, kept = stratified_split(labels, seed=seed, train=share, validation=0.0)
    if not len(held) or not len(kept):
        raise ValueError(
            f"holding out {share} of {len(labels)} samples leaves {len(kept)} and {len(held)};"
            " take more samples or another share"
        )
    return kept, held


def balanced_rows(labels: Tensor, size: int, *, seed: int) -> Tensor:
    """Choose `size` sample numbers, as many of each class as it allows; in increasing order.

    Raises:
        ValueError: `size` is below 1 or above the number of labels.
    """
    if not 1 <= size <= len(labels):
        raise ValueError(f"{size} samples asked, there are {len(labels)}")
    order = torch.randperm(len(labels), generator=generator_for("subset", int(seed)))
    rank = torch.empty_like(order)  # how many samples of its class come before it in that order
    for label in labels.unique():
        rows = order[labels[order] == label]
        rank[rows] = torch.arange(len(rows))
    return order[rank[order].argsort(stable=True)][:size].sort().values


def _balanced(part: Part, size: int, name: str, seed: int) -> Part:
    try:
        return part.take(balanced_rows(part.y, size, seed=seed))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _scaled(x: Tensor, part: Part) -> Tensor:
    """Subtract means and divide by deviations, in place; x: (..., C, H, W), 0 to 1."""
    mean, std = (torch.tensor(scale)[:, None, None] for scale in (part.mean, part.std))
    return x.sub_(mean).div_(std)
