"""What users give as data, as parts that a loop can ask for batches: sets, tensors, loaders."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from alkit.data import datasets
from alkit.data.arguments import as_pair, given
from alkit.data.own import from_folder, from_frame
from alkit.data.parts import DataSet, Part
from alkit.data.seeds import generator_for

__all__ = ["Loader", "Mapped", "Source", "Splits", "as_splits"]


class Source(Protocol):
    """Samples that come in batches: a `Part`, or a `Loader`."""

    @property
    def batches(self) -> Callable[..., Iterable[tuple[Any, Tensor]]]: ...


class Mapped:
    """A map-style `torch.utils.data.Dataset` of (x, y) as a source, in an order of (seed, epoch).

    For worker processes or a collation of your own, give a DataLoader.
    """

    def __init__(self, samples: Dataset[Any]) -> None:
        self.samples = samples

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
        return DataLoader(self.samples, shuffle=shuffle, generator=order, **options)


class Loader:
    """An iterable of batches (x, y) as a source: its own batches, in its own order.

    It is iterated once an epoch, and once for each look at it.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def batches(self, batch_size: int, **options: Any) -> Iterable[tuple[Any, Tensor]]:
        """Return the loader's batches; size and order are its own."""
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
            tensors (x, y) of all samples, y class numbers; a `torch.utils.data.Dataset`; or an
            iterable of batches, such as a DataLoader.
        validation, test: likewise, but for a name; None for those of the set, or none.
    Raises:
        TypeError: something else.
    """
    whole = _made(train)
    if isinstance(whole, DataSet):
        return Splits(
            whole.train,
            whole.validation if validation is None else _source(validation),
            whole.test if test is None else _source(test),
            whole.name,
            whole.num_classes,
        )
    return Splits(
        _source(train),
        None if validation is None else _source(validation),
        None if test is None else _source(test),
        num_classes=getattr(_source(train), "num_classes", None),
    )


def _made(samples: Any) -> Any:
    """Make a data set of what names one, or is a table or a folder of samples."""
    if isinstance(samples, str):
        return datasets.load(samples)
    if isinstance(samples, Path):
        return from_folder(samples)
    return from_frame(samples) if isinstance(samples, pd.DataFrame) else samples


def _source(samples: Any) -> Source:
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
        if y.dim() == 1 and not y.is_floating_point():
            return Part(x, y, int(y.max()) + 1)
        return Loader([samples])
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
