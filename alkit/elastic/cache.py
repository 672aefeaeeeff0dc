"""Run the frozen layers once a sample: read what they made before, run the rest, store the new.

    a sample's features at ...     what is done
    the layers frozen now (b)      read
    those frozen before (a < b)    read at a, run units a .. b, store at b
    nowhere                        run all frozen units, store at b

Features are stored in the host's memory, and what this gives is where the network is.

Reading ahead: while a batch is trained, a thread reads the next one's records into the other of
two buffers. Writing is that thread's, too; if it fails, training goes on without the cache.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alkit.data import tree
from alkit.elastic.network import Network
from alkit.elastic.store import Store, StoreError
from alkit.engine.device import place

log = logging.getLogger(__name__)


@dataclass
class Counters:
    """What a cache did since the counters were taken last.

    Attributes:
        hits, advanced, misses: samples.
        read_bytes, written_bytes: of features.
        read_s: seconds that training waited for reading.
        compute_s: seconds in frozen units.
    """

    hits: int = 0
    advanced: int = 0
    misses: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    compute_s: float = 0.0

    def samples_and_bytes(self) -> dict[str, int]:
        """Return what can be summed over ranks, by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}


class Cache:
    """Features of the frozen layers of one network.

    Args:
        network: its frozen units are run on a miss.
        raw: returns the inputs of samples, by rows and variant.
        folder: of this run; None: nothing is stored, all is computed.
    """

    def __init__(
        self, network: Network, raw: Callable[[Tensor, int], Any], folder: Path | None = None
    ) -> None:
        self.network, self.folder = network, folder
        self.raw = lambda rows, variant: place(raw(rows, variant), network)
        self.now: Store | None = None
        self.before: Store | None = None
        self.structure: Any = None  # of what the frozen layers return, see `_structure`
        self.structure_before: Any = None
        self.counters = Counters()
        # a new thread begins with torch's default number of operator threads: one will do
        self.thread = ThreadPoolExecutor(
            1, "alkit-cache", initializer=torch.set_num_threads, initargs=(1,)
        )
        self.writing: list[Future[int]] = []
        self.ahead: tuple[tuple[int, ...], int, Future[_Read]] | None = None

    def make(self, generation: int, layers: int, **options: Any) -> None:
        """Make the store of a generation; call it on one process, before the others `join` it.

        Args:
            layers: frozen ones.
            options: samples, variants, see `Store.create`.
        """
        assert self.folder is not None
        _, feature = self._one_sample()
        Store.create(
            self.folder / f"generation-{generation}",
            layers=layers,
            shape=feature.shape[1:],
            dtype=str(feature.dtype).removeprefix("torch."),
            **options,
        )

    def join(self, generation: int) -> None:
        """Use the store of a generation; the one before serves for advancing, older ones not."""
        self.settle()
        assert self.folder is not None
        self.before, self.now = self.now, Store.open(self.folder / f"generation-{generation}")
        self.structure_before, (self.structure, _) = self.structure, self._one_sample()

    def leave(self) -> None:
        """Use no store from now on."""
        self.settle()
        self.now = self.before = None

    def features(self, rows: Tensor, variant: int = 0) -> Any:
        """Return what the frozen units make of samples, as input of the first active unit."""
        x = self.raw(rows, variant)
        if self.network.frozen == 0:
            return x
        if self.now is None:
            self.counters.misses += len(rows)
            return self._computed(x, 0)
        start_s = time.perf_counter()
        found = self._taken(rows, variant)
        self.counters.read_s += time.perf_counter() - start_s
        whole = self._completed(rows, variant, x, found)
        return place(_filled(self.structure, whole, x), self.network)

    def read_ahead(self, rows: Tensor, variant: int = 0) -> None:
        """Begin to read what `features` will be asked for next."""
        if self.now is not None:
            key = tuple(rows.tolist())
            self.ahead = key, variant, self.thread.submit(self._read, rows, variant)

    def settle(self) -> None:
        """Wait for all writing to end; a failed write turns the cache off."""
        self._collect(wait=True)
        self.ahead = None

    def close(self) -> None:
        """End the thread."""
        self.settle()
        self.thread.shutdown()

    def taken_counters(self) -> Counters:
        """Return the counters, and begin anew."""
        found, self.counters = self.counters, Counters()
        return found

    def _completed(self, rows: Tensor, variant: int, x: Any, found: "_Read") -> Tensor:
        """Put what was read and what has to be computed together, and have that stored."""
        if found.whole is not None:
            self.counters.hits += len(rows)
            return found.whole
        parts: list[tuple[np.ndarray, Tensor]] = [(found.hit, found.features)]
        for at, low, features in (
            (found.old, self._old_first(), found.old_features),
            (found.missing, 0, None),
        ):
            if not at.any():
                continue
            part = _rows_of(x, at)
            entry = part if features is None else _filled(self.structure_before, features, part)
            parts.append((at, _structure(self._computed(entry, low), part)[1].cpu()))
        new = found.old | found.missing
        self.counters.hits += int(found.hit.sum())
        self.counters.advanced += int(found.old.sum())
        self.counters.misses += int(found.missing.sum())
        whole = _scattered(len(rows), parts)
        if new.any() and self.now is not None:
            slots = self.now.slots_of(rows, variant)[new]
            fresh = whole[torch.from_numpy(new)]
            self.writing.append(self.thread.submit(self.now.write, slots, fresh))
            self._collect(wait=False)
        return whole

    def _one_sample(self) -> tuple[Any, Tensor]:
        """Return the structure of what the frozen layers return, and one sample's feature."""
        one = self.raw(torch.zeros(1, dtype=torch.int64), 0)
        return _structure(self.network.prefix(one), one)

    def _computed(self, x: Any, low: int) -> Any:
        start_s = time.perf_counter()
        features = self.network.prefix(x, low)
        self.counters.compute_s += time.perf_counter() - start_s
        return features

    def _old_first(self) -> int:
        return 0 if self.before is None else self.network.first(self.before.header["layers"])

    def _taken(self, rows: Tensor, variant: int) -> "_Read":
        """Return what was read ahead, if it was for these samples; read it now if not."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[:2] == (tuple(rows.tolist()), variant):
            found = ahead[2].result()
        else:
            found = self._read(rows, variant)
        self.counters.read_bytes += found.bytes
        return found

    def _read(self, rows: Tensor, variant: int) -> "_Read":
        assert self.now is not None
        slots = self.now.slots_of(rows, variant)
        hit = self.now.valid(slots)
        if hit.all():
            whole = self.now.read(slots)
            return _Read(hit, whole, whole, ~hit, None, ~hit, whole.nbytes)
        old, old_features = np.zeros_like(hit), None
        if self.before is not None:
            before = self.before.slots_of(rows, variant)
            old = self.before.valid(before) & ~hit
            old_features = self.before.read(before[old])
        features = self.now.read(slots[hit])
        size = features.nbytes + (0 if old_features is None else old_features.nbytes)
        return _Read(hit, None, features, old, old_features, ~hit & ~old, size)

    def _collect(self, *, wait: bool) -> None:
        """Look at the writes that have ended."""
        left = []
        for write in self.writing:
            if not wait and not write.done():
                left.append(write)
                continue
            try:
                self.counters.written_bytes += write.result()
            except Exception as error:
                log.warning("the feature store fails (%s): training goes on without it", error)
                self.writing, self.now, self.before = [], None, None
                return
        self.writing = left


@dataclass
class _Read:
    """What was found of a batch: `whole`, or parts by bool masks over its samples."""

    hit: np.ndarray
    whole: Tensor | None
    features: Tensor
    old: np.ndarray
    old_features: Tensor | None
    missing: np.ndarray
    bytes: int


def _rows_of(x: Any, at: np.ndarray) -> Any:
    rows = torch.from_numpy(at)
    return tree.map_tensors(lambda each: each[rows], x)


def _scattered(count: int, parts: list[tuple[np.ndarray, Tensor]]) -> Tensor:
    some = next(features for at, features in reversed(parts) if len(features))
    whole = some.new_empty(count, *some.shape[1:])
    for at, features in parts:
        if at.any():
            whole[torch.from_numpy(at)] = features
    return whole


def _structure(made: Any, x: Any) -> tuple[Any, Tensor]:
    """Return where a feature stands in what layers return, and the feature.

    All other tensors there must be inputs, such as masks: they need not be stored. Where channels
    lie innermost, the feature has them last.

    Raises:
        StoreError: not exactly one tensor is new.
    """

    def identity(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

    places = {identity(tensor): at for at, tensor in enumerate(tree.tensors(x))}
    new: list[Tensor] = []

    def place_of(tensor: Tensor) -> Tensor:
        at, last = places.get(identity(tensor), -1), False
        if at < 0:
            last = tensor.dim() == 4 and not tensor.is_contiguous()
            last = last and tensor.is_contiguous(memory_format=torch.channels_last)
            new.append(tensor.permute(0, 2, 3, 1) if last else tensor)
        return torch.tensor([at, last])

    structure = tree.map_tensors(place_of, made)
    if len(new) != 1:
        raise StoreError(
            f"the frozen layers make {len(new)} tensors that are none of their inputs, and a store"
            " holds one: let the first unit hand its mask on as it is given"
        )
    return structure, new[0]


def _filled(structure: Any, feature: Tensor, x: Any) -> Any:
    """Return what the layers would for inputs x, with this feature."""
    inputs = list(tree.tensors(x))

    def found(place: Tensor) -> Tensor:
        at, last = place.tolist()
        if at < 0:
            return feature.permute(0, 3, 1, 2) if last else feature
        return inputs[at]

    return tree.map_tensors(found, structure)
