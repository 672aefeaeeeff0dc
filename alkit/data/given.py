"""What users give as data, as parts that a loop can ask for batches: sets, tensors, loaders."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from alkit.data import datasets, tree
from alkit.data.arguments import as_pair, given
from alkit.data.labels import are_numbers
from alkit.data.own import from_folder, from_frame
from alkit.data.parts import DataSet, Part
from alkit.data.seeds import generator_for

__all__ = ["Loader", "Mapped", "Pairs", "Source", "Splits", "as_source", "as_splits"]


class Source(Protocol):
    """Samples that come in batches: a `Part`, or a `Loader`."""

    @property
    def batches(self) -> Callable[..., Iterable[tuple[Any, Tensor]]]: ...


class Mapped:
    """A map-style `torch.utils.data.Dataset` of (x, y) as a source, in an order of (seed, epoch).

    For worker processes or a collation of your own, give a DataLoader.
    """

    def __init__(
        self, samples: Dataset[Any], *, collate: Callable[[Any], Any] | None = None
    ) -> None:
        self.samples, self.collate = samples, collate

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> DataLoader[Any]:
        """Return an epoch's batches."""
        order = generator_for("shuffle", int(seed), int(epoch))
        options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
        options["collate_fn"] = self.collate
        return DataLoader(self.samples, shuffle=shuffle, generator=order, **options)


class _Rows(Dataset[Any]):
    """Samples in memory, fetched a batch at a time."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> tuple[Any, Tensor]:
        chosen = torch.tensor(rows)
        return tree.map_tensors(lambda tensor: tensor[chosen], self.x), self.y[chosen]


class Pairs(Mapped):
    """Samples in memory that are no `Part`: nested inputs, or targets that are no class numbers.

    Args:
        x: a tensor (N, ...), or tuples, lists and dicts of them.
        y: (N, ...): class numbers, or what a loss of your own compares.
    Raises:
        ValueError: inputs and targets of different lengths.
    """

    def __init__(self, x: Any, y: Tensor) -> None:
        if any(len(each) != len(y) for each in tree.tensors(x)):
            lengths = sorted({len(each) for each in tree.tensors(x)})
            raise ValueError(f"inputs of {lengths} samples and {len(y)} targets: give as many")
        super().__init__(_Rows(x, y), collate=_as_fetched)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int | None:
        """One more than the highest class number; None where targets are no classes."""
        return int(self.y.max()) + 1 if are_numbers(self.y) else None


def _as_fetched(batch: Any) -> Any:
    return batch


class Loader:
    """An iterable of batches (x, y) as a source: its own batches, in its own order.

    It is iterated once an epoch, and once for each look at it.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def batches(self, batch_size: int, **options: Any) -> "Loader":
        """Return the loader's batches; size and order are its own."""
        return self

    def __len__(self) -> int:
        """Return how many batches there are; a TypeError where the loader does not know."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return (as_pair(batch, number) for number, batch in enumerate(self.loader))


@dataclass(frozen=True)
class Splits:
    """The parts of a run; `num_classes` is None where nothing says it."""

    train: Source
    validation: Source | None = None
    test: Source | None = None
    name: str = "data"
    num_classes: int | None = None

    def fingerprint(self) -> str:
        """Name the data, the sizes, and a hash of the labels: another split is other data."""
        parts: list[Any] = [self.train, self.validation, self.test]
        parts = [part for part in parts if hasattr(part, "y")]
        digest = hashlib.blake2b(digest_size=4)
        for part in parts:
            digest.update(part.y.cpu().numpy().tobytes())
        return f"{self.name} {'/'.join(str(len(part)) for part in parts)} {digest.hexdigest()}"


def as_splits(train: Any, validation: Any = None, test: Any = None) -> Splits:
    """Return what was given as parts.

    Args:
        train: a `DataSet` or its name, a data frame of texts (columns text and label) or the path
            of a folder of images (a folder a class), which may bring the other parts; a `Part`;
            tensors (x, y) of all samples, y class numbers or other targets; a
            `torch.utils.data.Dataset`; or an iterable of batches, such as a DataLoader.
        validation, test: likewise, but for a name; None for those of the set, or none.
    Raises:
        TypeError: something else.
    """
    if isinstance(train, Splits):
        return train
    whole = _made(train)
    if isinstance(whole, DataSet):
        return Splits(
            whole.train,
            whole.validation if validation is None else as_source(validation),
            whole.test if test is None else as_source(test),
            whole.name,
            whole.num_classes,
        )
    return Splits(
        as_source(train),
        None if validation is None else as_source(validation),
        None if test is None else as_source(test),
        num_classes=getattr(as_source(train), "num_classes", None),
    )


def _made(samples: Any) -> Any:
    """Make a data set of what names one, or is a table or a folder of samples."""
    if isinstance(samples, str):
        return datasets.load(samples)
    if isinstance(samples, Path):
        return from_folder(samples)
    return from_frame(samples) if isinstance(samples, pd.DataFrame) else samples


def as_source(samples: Any) -> Source:
    """Return what was given as one part, see `as_splits`.

    Raises:
        TypeError: something that gives no batches (x, y), or gives them only once.
    """
    if hasattr(samples, "batches"):
        return samples
    if isinstance(samples, IterableDataset):
        raise TypeError(
            "data is an IterableDataset, whose batches are not made: give"
            " torch.utils.data.DataLoader(data, batch_size=...)"
        )
    if isinstance(samples, Dataset):
        return Mapped(samples)
    if isinstance(samples, tuple) and len(samples) == 2 and isinstance(samples[1], Tensor):
        x, y = samples
        if isinstance(x, Tensor) and are_numbers(y):
            return Part(x, y, int(y.max()) + 1)
        return Pairs(x, y)
    if isinstance(samples, Iterable) and not isinstance(samples, str | Tensor | dict):
        if iter(samples) is samples:
            raise TypeError(
                f"data is {given(samples)}, which can be read once: give a list, a DataLoader or"
                " another iterable that starts anew for every epoch"
            )
        return Loader(samples)
    raise TypeError(
        f"data is {given(samples)}: give a DataSet or its name, a Part, a data frame of texts, the"
        " Path of a folder of images, tensors (x, y), a Dataset, or an iterable of batches (x, y)"
    )
