"""What users give as data, as parts that a loop can ask for batches.

    tensors, arrays, lists, Datasets     samples with numbers: one order at one seed
    loaders                              their own batches, in their own order
    streams                              batches without rows

x and y are handed on as they were given: class numbers stay class numbers, whole numbers are no
texts. What is no tensor becomes one; labels that are words become numbers, and the words are kept.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from alkit.base import tree
from alkit.base.arguments import given
from alkit.base.seeds import drawing_from, generator_for, seed_for
from alkit.data.pairs import Words, as_inputs, as_pair, as_targets
from alkit.data.parts import DataSet, Part


class Source(Protocol):
    """Samples that come in batches (x, y)."""

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

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> Iterable[tuple[Any, Tensor]]:
        """Return an epoch's batches."""
        order = generator_for("shuffle", int(seed), int(epoch))
        options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
        options["collate_fn"] = self.collate
        made: Any = DataLoader(self.samples, shuffle=shuffle, generator=order, **options)
        return _Seeded(made, seed_for("samples", int(seed), int(epoch)))


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
    """Samples in memory, as they were given.

    Args:
        x: a tensor (N, ...), or tuples, lists and dicts of them.
        y: (N, ...): class numbers, or what a loss of your own compares.
    Raises:
        ValueError: no samples, or inputs and targets of different lengths.
    """

    def __init__(self, x: Any, y: Tensor) -> None:
        if any(len(each) != len(y) for each in tree.tensors(x)):
            lengths = sorted({len(each) for each in tree.tensors(x)})
            raise ValueError(f"inputs of {lengths} samples and {len(y)} targets: give as many")
        if not len(y):
            raise ValueError("there are no samples: give at least one")
        super().__init__(_Rows(x, y), collate=_as_fetched)
        self.x, self.y = x, y


def _as_fetched(batch: Any) -> Any:
    return batch


class Loader:
    """An iterable of batches (x, y) as a source: its own batches, in its own order.

    It is iterated once an epoch, and once for each look at it. A shuffle without a generator of its
    own is a function of (seed, epoch); samplers are told the epoch.

    Attributes:
        batch_size: its own, where it says one, or a list's first batch's.
        drops: a last, smaller batch.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        says = loader, getattr(loader, "batch_sampler", None)
        sizes = [getattr(each, "batch_size", None) for each in says]
        if isinstance(loader, list | tuple) and loader:
            sizes.append(tree.batch_size(as_pair(loader[0], 0)[0]) or None)
        self.batch_size: int | None = next((each for each in sizes if each is not None), None)
        self.drops = any(getattr(each, "drop_last", False) for each in says)

    def batches(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, **order: Any
    ) -> Iterable[tuple[Any, Tensor]]:
        """Return the loader's batches; size and order are its own."""
        sampler = getattr(self.loader, "batch_sampler", None)
        for each in (sampler, getattr(sampler, "sampler", None), self.loader):
            if tells := getattr(each, "set_epoch", None):
                tells(epoch)
        return _Seeded(self.loader, seed_for("loader", int(seed), int(epoch)))

    def generators(self) -> list[torch.Generator]:
        """Return the generators that the user gave, which go on from epoch to epoch."""
        sampler = getattr(self.loader, "batch_sampler", None)
        inner = getattr(sampler, "sampler", None)
        found = [getattr(each, "generator", None) for each in (self.loader, sampler, inner)]
        return list({id(each): each for each in found if each is not None}.values())

    def __len__(self) -> int:
        """Return how many batches there are; a TypeError where the loader does not know."""
        return len(self.loader)  # type: ignore[arg-type]


END = object()


class _Seeded:
    """Batches (x, y) of something that may draw from torch's generator, as a function of a seed.

    The generator that everybody shares is given back between two batches.
    """

    def __init__(self, source: Iterable[Any], seed: int) -> None:
        self.source, self.seed = source, seed

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        state = torch.Generator().manual_seed(self.seed).get_state()
        with drawing_from(state):
            batches = iter(self.source)
        for number in range(1 << 62):
            with drawing_from(state):
                batch = next(batches, END)
            if batch is END:
                return
            x, y = as_pair(batch, number)
            if number and not tree.batch_size(x):
                raise ValueError(f"batch {number} has no samples: leave such batches out")
            yield x, y


def in_memory(source: Any) -> tuple[Any, Tensor]:
    """Return all samples (x, y) in memory, for methods that pick or deal them by number.

    Raises:
        ValueError: samples that differ when they are read twice, which memory would freeze, or a
            sampler that chooses among them.
    """
    if isinstance(source, Part):
        if source.augment != "none":
            raise ValueError("images are augmented, and this method keeps them as they are once")
        source = source.floats()
        return source.x, source.y
    if isinstance(source, Pairs):
        return source.x, source.y
    made = source
    if isinstance(source, Loader) and isinstance(source.loader, DataLoader):
        loader = source.loader
        if not isinstance(loader.dataset, IterableDataset):
            _check_sampler(loader)
            made = Mapped(loader.dataset, collate=loader.collate_fn)
    once, twice = (next(iter(made.batches(8, shuffle=False, seed=at))) for at in (0, 1))
    if not all(map(torch.equal, tree.tensors(once), tree.tensors(twice))):
        raise ValueError(
            "the samples differ when they are read twice (augmented?), and this method keeps them"
            " in memory, where they would stay as they were read first: give samples that do not"
            " change"
        )
    count = len(made) if isinstance(made, Mapped) else 512
    pairs = list(made.batches(count, shuffle=False))
    x, y = (tree.joined([pair[at] for pair in pairs]) for at in (0, 1))
    return x, y


def _check_sampler(loader: DataLoader[Any]) -> None:
    batches: Any = loader.batch_sampler
    sampler = getattr(batches, "sampler", loader.sampler)
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    if not whole or type(batches) not in (BatchSampler, type(None)):
        own = batches if whole else sampler
        raise ValueError(
            f"the loader's {type(own).__name__} chooses samples or batches, and this method takes"
            " all samples, in batches of its own: give a loader without it, or another method"
        )


def first_samples(source: Any, count: int | None) -> tuple[Any, Any]:
    """Return the first samples, or fewer, without a trace: generators are given back.

    Args:
        count: how many, at most; None: a loader's first batch.
    Raises:
        ValueError: there are none.
    """
    generators = source.generators() if isinstance(source, Loader) else []
    states = [each.get_state() for each in generators]
    batch = next(iter(source.batches(count or 1, shuffle=False)), None)
    for each, state in zip(generators, states, strict=True):  # a look must not count as an epoch
        each.set_state(state)
    if batch is None or not tree.batch_size(batch[0]):
        raise ValueError("the data have no samples: give at least one")
    return tree.rows(batch, slice(count))


@dataclass(frozen=True)
class Splits:
    """The parts of a run.

    Attributes:
        classes: names of the classes, where they have some.
        num_classes: of a data set that says it.
    """

    train: Source
    validation: Source | None = None
    test: Source | None = None
    name: str = "data"
    num_classes: int | None = None
    classes: tuple[str, ...] = ()

    def fingerprint(self, *, whole: bool = False) -> str:
        """Name the data, the sizes, and a hash of the labels: another split is other data.

        Args:
            whole: the hash is also of the inputs, where they are in memory.
        """
        parts: list[Any] = [self.train, self.validation, self.test]
        parts = [part for part in parts if hasattr(part, "y")]
        digest = hashlib.blake2b(str(getattr(self.train, "augment", "")).encode(), digest_size=4)
        for part in parts:
            for each in (*tree.tensors(part.x if whole else ()), *tree.tensors(part.y)):
                raw = each.detach().cpu().contiguous().flatten().view(torch.uint8)
                digest.update(raw.numpy().data)
        return f"{self.name} {'/'.join(str(len(part)) for part in parts)} {digest.hexdigest()}"


def as_splits(train: Any, validation: Any = None, test: Any = None) -> Splits:
    """Return what was given as parts.

    Args:
        train: a `DataSet`, which brings the other parts; a `Part`; (x, y) of all samples, tensors,
            arrays or lists; a `torch.utils.data.Dataset`; or an iterable of batches, such as a
            DataLoader.
        validation, test: likewise; None for those of the set, or none.
    Raises:
        TypeError: something else.
        ValueError: a label of the other parts that the training part does not have as a word.
    """
    if isinstance(train, Splits):
        return train
    words: Words = {}
    if isinstance(train, DataSet):
        held = train.validation if validation is None else as_source(validation)
        last = train.test if test is None else as_source(test)
        return Splits(train.train, held, last, train.name, train.num_classes, train.class_names)
    first = as_source(train, words)
    others = [None if each is None else as_source(each, words) for each in (validation, test)]
    return Splits(first, others[0], others[1], classes=tuple(map(str, words)))


def as_source(samples: Any, words: Words | None = None) -> Source:
    """Return what was given as one part, see `as_splits`.

    Args:
        words: classes that are words, by number; filled by the first part.
    Raises:
        TypeError: something that gives no batches (x, y), or gives them only once.
    """
    words = {} if words is None else words
    if hasattr(samples, "batches"):
        return samples
    if isinstance(samples, IterableDataset):
        raise TypeError(
            "data is an IterableDataset, whose batches are not made: give"
            " torch.utils.data.DataLoader(data, batch_size=...)"
        )
    if isinstance(samples, Dataset):
        return Mapped(samples)
    if isinstance(samples, tuple) and len(samples) == 2 and _are_targets(samples[1]):
        return Pairs(as_inputs(samples[0]), as_targets(samples[1], words))
    if isinstance(samples, Iterable) and not isinstance(
        samples, str | Tensor | Mapping | pd.DataFrame
    ):
        if hasattr(samples, "__next__"):
            raise TypeError(
                f"data is {given(samples)}, which can be read once: give a list, a DataLoader or"
                " another iterable that starts anew for every epoch"
            )
        return Loader(samples)
    raise TypeError(
        f"data is {given(samples)}: give (x, y) as tensors, arrays or lists, a Dataset, a"
        " DataLoader or another iterable of batches (x, y), or what alkit.datasets.load returns"
    )


def _are_targets(value: Any) -> bool:
    """Say whether something is all targets, and not one of two batches."""
    plain = isinstance(value, list) and bool(value) and np.ndim(value[0]) == 0
    return isinstance(value, Tensor | np.ndarray | pd.Series) or plain
