"""Data as plain tensors: parts, mini-batches, data sets, and how samples are dealt to parts.

Shapes: N samples, B samples of a batch, T tokens, K classes, C, H, W image.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import Brief, given
from alkit.base.seeds import generator_for
from alkit.data.augment import KINDS, colours, crop_and_flip
from alkit.data.text import PAD


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Brief):
    """Samples in memory, as they were given.

    Args:
        x: a tensor (N, ...), or tuples, lists and dicts of them.
        y: (N, ...), or several: class numbers, or what a loss of your own compares.
    """

    x: Any
    y: Any

    def __post_init__(self) -> None:
        both = [sorted({*map(len, tree.tensors(each))}) for each in (self.x, self.y)]
        if both[0] != both[1] or len(both[0]) > 1:
            raise ValueError(f"inputs of {both[0]} samples, {both[1]} targets: give as many")

    def __len__(self) -> int:
        return tree.batch_size(self.y)

    def take(self, rows: Tensor) -> Self:
        """Return these samples."""
        x, y = tree.map_tensors(lambda tensor: tensor[rows], (self.x, self.y))
        return replace(self, x=x, y=y)

    def batches(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
    ) -> Iterator[tuple[Any, Tensor]]:
        """Return the mini-batches of one epoch; their order depends only on (seed, epoch)."""
        key = (int(seed), int(epoch)) if shuffle else ()
        rows = self._order(generator_for("shuffle", *key)) if key else torch.arange(len(self))
        return (self._batch(key, at, own) for at, own in enumerate(rows.split(batch_size)))

    def _order(self, generator: torch.Generator) -> Tensor:
        """Return the order of a DataLoader with this generator, which seeds its workers first."""
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        return torch.randperm(len(self), generator=generator)

    def _batch(self, key: tuple[int, ...], number: int, rows_B: Tensor) -> tuple[Any, Tensor]:
        return tree.map_tensors(lambda tensor: tensor[rows_B], (self.x, self.y))


@dataclass(frozen=True, eq=False, repr=False)
class Part(Pairs):
    """Images or texts of a data set, with their classes.

    Batches are float (B, C, H, W) for images; for texts (tokens_BT, mask_BT), the mask true at
    tokens, both cut to the longest text of the batch. Class numbers are int64 (B,).

    Args:
        x: images, float (N, ...) or uint8 (N, C, H, W); or texts, int64 (N, T), padded on the
            right with 0.
        y: labels (N,) from 0 to num_classes - 1.
        mean, std: for uint8 images, C numbers each; batches are float ((x / 255 - mean) / std).
        augment: how images of shuffled batches are changed: "weak" (cropped and flipped), "edge"
            (its border repeated), "strong" (colours, too); a function of (seed, epoch, batch).
    """

    num_classes: int
    _: KW_ONLY
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: str = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", torch.as_tensor(self.y).long())
        super().__post_init__()
        bad = (self.y < 0) | (self.y >= self.num_classes)
        if bad.any():
            raise ValueError(f"labels are from 0 to {self.num_classes - 1}, got {self.y[bad][0]}")
        if self.is_bytes and not len(self.mean or ()) == len(self.std or ()) == self.x.shape[1]:
            raise ValueError(f"x is {given(self.x)}: give mean and std of each channel")
        coloured = self.is_bytes and self.x.shape[1] == 3
        kinds = KINDS[: 4 if coloured else 3 if self.x.dim() == 4 else 1]
        if self.augment not in kinds:
            said = f"augment is {self.augment!r} and x {given(self.x)}"
            raise ValueError(f"{said}: give {', '.join(kinds)}")

    @property
    def is_text(self) -> bool:
        """Say whether the samples are rows of token ids."""
        return self.x.dtype == torch.int64 and self.x.dim() == 2

    @property
    def is_bytes(self) -> bool:
        """Say whether the samples are images of one byte a colour."""
        return self.x.dtype == torch.uint8 and self.x.dim() == 4

    def floats(self) -> "Part":
        """Return the part with images of bytes as the floats that its batches hold."""
        return replace(self, x=self.images(self.x), mean=None, std=None) if self.is_bytes else self

    def images(self, x: Tensor, drawn: Any = None) -> Tensor:
        """Return images of the part as batches hold them, augmented by draws where there are."""
        kind = "none" if drawn is None else self.augment
        if kind != "none":  # bytes move in a quarter of the time of floats
            x = crop_and_flip(x, drawn, kind)
        if not self.is_bytes:
            return x
        x = x.float().div_(255)
        mean, std = (torch.tensor(scale)[:, None, None] for scale in (self.mean, self.std))
        return (colours(x, drawn) if kind == "strong" else x).sub_(mean).div_(std)

    def _order(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self), generator=generator)

    def _batch(self, key: tuple[int, ...], number: int, rows_B: Tensor) -> tuple[Any, Tensor]:
        """Make a batch, augmented as the key of its epoch says."""
        x, y_B = self.x[rows_B], self.y[rows_B]
        if self.is_text:
            mask_BT = x != PAD
            longest = int(mask_BT.sum(dim=1).max())
            return (x[:, :longest].contiguous(), mask_BT[:, :longest].contiguous()), y_B
        return self.images(x, generator_for("augment", *key, number) if key else None), y_B


@dataclass(frozen=True, eq=False, repr=False)
class DataSet(Brief):
    """The parts of a data set, or of a run, and the meaning of its labels."""

    name: str
    train: Any  # a `Part`, or another source of batches
    validation: Any = None
    test: Any = None
    num_classes: int = 0  # where nobody says it
    class_names: tuple[str, ...] = ()
    vocabulary: Sequence[str] = ()  # of texts

    def subset(self, *, seed: int = 0, **sizes: int | None) -> "DataSet":
        """Keep these numbers of samples of each part, with classes as equal as can be."""
        parts = dict[str, Any]()
        for name, size in sizes.items():
            if size is not None:
                part = getattr(self, name)
                parts[name] = part.take(balanced_rows(part.y, size, seed=seed))
        return replace(self, **parts)

    def augmented(self, kind: str) -> "DataSet":
        """Return the set with training images that change by a kind of `Part.augment`."""
        return replace(self, train=replace(self.train, augment=kind))

    def describe(self) -> str:
        """Return one line with the sizes."""
        sizes = f"{len(self.train)} train, {len(self.validation)} validation, {len(self.test)} test"
        sample = "x".join(str(size) for size in self.train.x.shape[1:])
        kind = f"texts of up to {sample} tokens" if self.train.is_text else f"images {sample}"
        words = f"; vocabulary {len(self.vocabulary)}" if self.vocabulary else ""
        return f"{self.name}: {sizes}; {self.num_classes} classes; {kind}{words}"

    def fingerprint(self, *, whole: bool = False) -> str:
        """Name the data, the sizes, and a hash of the labels in memory, or of the `whole`."""
        parts = [part for part in (self.train, self.validation, self.test) if hasattr(part, "y")]
        digest = hashlib.blake2b(str(getattr(self.train, "augment", "")).encode(), digest_size=4)
        for each in tree.tensors([(part.x, part.y) if whole else part.y for part in parts]):
            raw = each.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(raw.numpy().data)
        return f"{self.name} {'/'.join(str(len(part)) for part in parts)} {digest.hexdigest()}"


def stratified_split(
    labels: Tensor, *, seed: int, shares: Sequence[float] = (0.6, 0.2)
) -> list[Tensor]:
    """Deal the sample numbers to parts, class by class in these shares; the last has the rest."""
    dealt: list[list[Tensor]] = [[] for _ in range(len(shares) + 1)]
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        generator = generator_for("split", int(seed), int(label))
        rows = rows[torch.randperm(len(rows), generator=generator)]
        sizes = [round(share * len(rows)) for share in shares]
        for pile, part in zip(dealt, rows.split([*sizes, len(rows) - sum(sizes)]), strict=True):
            pile.append(part)
    return [torch.cat(pile).sort().values for pile in dealt]


def balanced_rows(labels: Tensor, size: int, *, seed: int) -> Tensor:
    """Choose `size` sample numbers, as many of each class as it allows; in increasing order."""
    if not 1 <= size <= len(labels):
        raise ValueError(f"{size} samples asked, there are {len(labels)}")
    order = torch.randperm(len(labels), generator=generator_for("subset", int(seed)))
    found = pd.Series(labels[order].numpy())
    rank = found.groupby(found).cumcount().to_numpy()  # samples of its class that come before it
    return order[rank.argsort(kind="stable")][:size].sort().values
