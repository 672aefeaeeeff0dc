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
from alkit.engine.messages import describe, rebuild

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
        one = self.raw(torch.zeros(1, dtype=torch.int64), 0)
        structure, features = describe(self.network.prefix(one), list(tree.tensors(one)))
        if len(features) != 1:
            raise StoreError(
                f"the frozen layers make {len(features)} tensors that are none of their inputs, and"
                " a store holds one: let the first unit hand its mask on as it is given"
            )
        Store.create(
            self.folder / f"generation-{generation}",
            layers=layers,
            shape=features[0].shape[1:],
            structure=structure,
            dtype=str(features[0].dtype).removeprefix("torch."),
            **options,
        )

    def join(self, generation: int) -> None:
        """Use the store of a generation; the one before serves for advancing, older ones not."""
        self.settle()
        assert self.folder is not None
        self.before, self.now = self.now, Store.open(self.folder / f"generation-{generation}")

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
        structure = self.now.header["structure"]  # a write that has failed lets go of the store
        whole = self._completed(rows, variant, x, found)
        return place(rebuild(structure, [whole], list(tree.tensors(x))), self.network)

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
            entry, known = part, list(tree.tensors(part))
            if features is not None and self.before is not None:
                entry = rebuild(self.before.header["structure"], [features], known)
            (computed,) = describe(self._computed(entry, low), known)[1]
            parts.append((at, computed.cpu()))
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
