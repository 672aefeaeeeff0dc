"""Turn data that users give into sources of the same batches (x, y); arrays become tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils import data as torch_data

from alkit.base import tree
from alkit.base.arguments import given
from alkit.base.seeds import drawing_from, generator_for, seed_for
from alkit.data.parts import DataSet, Pairs, Part

ARRAYS = (np.ndarray, pd.Series, pd.DataFrame)
END = object()
PLAIN = (torch_data.SequentialSampler, torch_data.RandomSampler)


@dataclass(frozen=True)
class Mapped:
    """A map-style `torch.utils.data.Dataset` of (x, y), in an order of (seed, epoch)."""

    samples: Any
    collate: Callable[[Any], Any] | None = None

    def batches(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield an epoch's batches."""
        options: dict[str, Any] = {"shuffle": shuffle, "collate_fn": self.collate}
        order = generator_for("shuffle", int(seed), int(epoch))
        made = torch_data.DataLoader(self.samples, batch_size, generator=order, **options)
        return _drawn(made, seed_for("samples", int(seed), int(epoch)))


class Loader:
    """An iterable of batches (x, y), in its own order; a shuffle without a generator of its own is
    a function of (seed, epoch), and samplers get the epoch.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader, batches = loader, getattr(loader, "batch_sampler", None)
        self.parts = loader, batches, getattr(batches, "sampler", None)
        own = loader if batches is None else batches
        self.batch_size: int | None = getattr(own, "batch_size", None)
        if isinstance(loader, list | tuple) and loader:
            self.batch_size = tree.batch_size(as_pair(loader[0], 0)[0]) or None
        self.drops: bool = getattr(own, "drop_last", False)  # a last, smaller batch

    def batches(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, **order: Any
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield the loader's batches; size and order are its own."""
        for each in self.parts:
            if tells := getattr(each, "set_epoch", None):
                tells(epoch)
        return _drawn(self.loader, seed_for("loader", int(seed), int(epoch)))


Source = Pairs | Mapped | Loader


def generators_of(source: Any) -> list[torch.Generator]:
    """Return the generators of a user's loader, which go on from epoch to epoch."""
    found = (getattr(each, "generator", None) for each in getattr(source, "parts", ()))
    return [each for each in dict.fromkeys(found) if each is not None]


def _drawn(source: Iterable[Any], seed: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches of a source that may draw from torch's generator, as a function of a seed."""
    state = torch.Generator().manual_seed(seed).get_state()
    batches = (batch for whole in [source] for batch in whole)  # opened when it is first asked
    for number in count():
        with drawing_from(state):
            batch = next(batches, END)
        if batch is END:
            return
        x, y = as_pair(batch, number)
        if number and not tree.batch_size(x):
            raise ValueError(f"batch {number} has no samples: leave such batches out")
        yield x, y


def as_pair(batch: Any, number: int) -> tuple[Any, Any]:
    """Return a batch as (x, y): a pair, or a dictionary with "labels", which are y."""
    if isinstance(batch, Mapping) and "labels" in batch:
        batch = {name: own for name, own in batch.items() if name != "labels"}, batch["labels"]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        said = f"batch {number} must be a pair (x, y) of tensors, got {given(batch)}"
        raise TypeError(f'{said}: several inputs are a tuple in it, a dict has y as "labels"')
    return _as_tensors(*batch)


def _as_tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Return arrays as tensors, whole numbers of y as int64; several of a sample stay nested."""
    if isinstance(y, list) and not (y and isinstance(y[0], Tensor) and y[0].dim()):
        y = np.asarray(y)
    x, y = (tree.map_tensors(_tensor, own, ARRAYS) for own in (x, y))
    plain = lambda own: tree.differentiable(own) or own.dtype == torch.bool  # noqa: E731
    return x, tree.map_tensors(lambda own: own if plain(own) else own.long(), y)


def _tensor(array: Any) -> Tensor:
    """Share the memory of an array, if it may be written to; floats get torch's default type."""
    found = np.require(array, requirements="W")
    if found.dtype.kind in "OUS":  # words, or a table's columns of several types
        if any(isinstance(each, str) for each in found.flat):
            raise TypeError("the data hold words: pandas.factorize makes class numbers of them")
        found = found.astype(float)
    found = torch.from_numpy(found)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


def in_memory(source: Any) -> tuple[Any, Tensor]:
    """Return all samples (x, y) in memory; some methods pick or deal them by number."""
    if isinstance(source, Part):
        if source.augment != "none":
            raise ValueError("images are augmented, and this method keeps them as they are once")
        source = source.floats()
    if isinstance(source, Pairs):
        return source.x, source.y
    loader = source.loader if isinstance(source, Loader) else None
    samples: Any = getattr(loader, "dataset", None)
    iterable = isinstance(samples, torch_data.IterableDataset)
    own: Any = getattr(loader, "batch_sampler", None)
    if isinstance(loader, torch_data.DataLoader) and own is not None and not iterable:
        by: Any = own.sampler if type(own) is torch_data.BatchSampler else own or loader.sampler
        whole = type(by) in PLAIN and len(by) == len(samples)
        if not whole or getattr(by, "replacement", False):
            said = f"the loader's {type(by).__name__} chooses samples or batches"
            raise ValueError(f"{said}, and this method takes all, in batches of its own")
        source = Mapped(samples, loader.collate_fn)
    once, twice = (next(iter(source.batches(8, shuffle=False, seed=at))) for at in (0, 1))
    if not all(map(torch.equal, tree.tensors(once), tree.tensors(twice))):
        said = "the samples differ when they are read twice (augmented?)"
        raise ValueError(f"{said}, and this method keeps them in memory: give others")
    size = len(source.samples) if isinstance(source, Mapped) else 1
    return tree.joined(list(source.batches(size, shuffle=False)))


def first_batch(source: Any, size: int, whose: str = "the data") -> tuple[Any, Any]:
    """Return the first batch, a loader's own or of this size, without a trace."""
    generators = generators_of(source)
    states = [each.get_state() for each in generators]
    batch = next(iter(source.batches(size, shuffle=False)), None)
    for each, state in zip(generators, states, strict=True):  # a look must not count as an epoch
        each.set_state(state)
    if batch is None or not tree.batch_size(batch[0]):
        raise ValueError(f"{whose} have no samples: give at least one")
    return batch


def as_splits(train: Any, validation: Any = None, test: Any = None) -> DataSet:
    """Return given data as parts, see `as_source`; a `DataSet` brings the other parts, too."""
    data = train if isinstance(train, DataSet) else DataSet("data", train)
    held = data.validation if validation is None else as_source(validation)
    last = data.test if test is None else as_source(test)
    return replace(data, train=as_source(data.train), validation=held, test=last)


def as_source(samples: Any) -> Source:
    """Return samples as one part: from a `Part`, (x, y) of all samples (tensors or arrays), a
    `torch.utils.data.Dataset`, a list of samples, or an iterable of batches such as a DataLoader.
    """
    if hasattr(samples, "batches"):
        return samples
    if isinstance(samples, tuple) and len(samples) == 2 and _are_targets(*samples):
        return Pairs(*_as_tensors(*samples))
    if isinstance(samples, torch_data.Dataset) or _are_samples(samples):
        return Mapped(samples)
    stream = getattr(samples, "dataset", None)
    goes_on = isinstance(stream, torch_data.IterableDataset) and iter(stream) is iter(stream)
    if not isinstance(samples, Iterable) or hasattr(samples, "__next__") or goes_on:
        said = "give (x, y), a Dataset, or what begins anew: a DataLoader, a list of batches"
        raise TypeError(f"data is {given(samples)}, which can't be read twice: {said}")
    return Loader(samples)


def _are_targets(x: Any, y: Any) -> bool:
    """Say whether a pair is all inputs and targets, and not two batches."""
    named = isinstance(y, Mapping) and "labels" not in y
    several = isinstance(y, tuple) and isinstance(x, Tensor | np.ndarray)
    plain = isinstance(y, list) and bool(y) and np.ndim(y[0]) == 0
    return isinstance(y, Tensor | np.ndarray | pd.Series) or named or several or plain


def _are_samples(data: Any) -> bool:
    """Say whether something sized holds samples, and not batches: a target has no dimension."""
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)
    if not sized or isinstance(data, (Mapping, *ARRAYS)):
        return False
    first = data[0]
    if isinstance(first, Mapping):
        first = None, first.get("labels", [])
    if not isinstance(first, tuple | list) or len(first) != 2:
        return False
    return getattr(first[1], "ndim", not isinstance(first[1], int | float)) == 0
