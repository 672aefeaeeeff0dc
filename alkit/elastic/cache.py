"""Run the frozen layers once a sample: read their earlier outputs, run the rest, store the new.

    a sample is stored ...             action
    behind the layers frozen now       read
    behind those frozen before         read there, run the units from there on, store
    nowhere                            run all frozen units, store

A store is a file that all ranks map into memory, and that has no name from then on: it goes with
them, however they end. A byte a sample says whether its record is whole.
"""

import logging
import math
import mmap
import os
import tempfile
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alkit.base import tree
from alkit.elastic.network import Network
from alkit.engine.device import place
from alkit.engine.launch import on_several_machines
from alkit.engine.messages import Group

log = logging.getLogger(__name__)

ALIGNED = 64  # bytes


class Cache:
    """Outputs of the frozen layers of a network for inputs x of all samples, stored if `wanted`."""

    def __init__(self, network: Network, x: Any, world: Group, *, wanted: bool) -> None:
        self.network, self.x, self.world, self.wanted = network, x, world, wanted
        self.now: _Store | None = None
        self.before: _Store | None = None
        self.counts = Counter(hits=0, advanced=0, misses=0)  # samples by where they came from

    def follow(self) -> None:
        """Begin a store, if there can be one, where other layers are frozen; all ranks call it."""
        first = self.network.first()
        if not self.wanted or not first or (self.now is not None and self.now.first == first):
            return
        samples = tree.batch_size(self.x)
        like = self.network.prefix(self.inputs(torch.arange(1)))
        path = self.world.from_first(self._file, like, samples)
        if path is None:
            self.wanted, self.now, self.before = False, None, None
            return
        self.before, self.now = self.now, _Store(path, first, like, samples)
        self.world.gather(True)  # all have it
        if self.world.rank == 0:
            Path(path).unlink()

    def features(self, rows: Tensor) -> Any:
        """Return the output of the frozen units for samples, as input of the first active unit."""
        now, before = self.now, self.before
        if now is None:
            self.counts["misses"] += len(rows)
            return self.network.prefix(self.inputs(rows))
        new = ~now.valid[rows]
        old = new & before.valid[rows] if before is not None else torch.zeros_like(new)
        missing = new & ~old
        self.counts.update(hits=int((~new).sum()), advanced=int(old.sum()))
        self.counts["misses"] += int(missing.sum())
        if before is not None and old.any():
            now.write(rows[old], self.network.prefix(before.read(rows[old]), before.first))
        if missing.any():
            now.write(rows[missing], self.network.prefix(self.inputs(rows[missing])))
        return place(now.read(rows), self.network)

    def inputs(self, rows: Tensor) -> Any:
        """Return the inputs of the network for samples."""
        return tree.map_tensors(lambda tensor: tensor[rows], self.x)

    def _file(self, like: Any, samples: int) -> str | None:
        """Make a file with room for all samples; return its path, or None if there can't be one."""
        two = self.network.prefix(self.inputs(torch.arange(min(2, samples))))
        path, both = None, zip(tree.tensors(like), tree.tensors(two), strict=True)
        rows = {(*one.shape[:1], *more.shape[:1]) for one, more in both}
        try:
            if self.world.ranks > 1 and on_several_machines():
                raise OSError("ranks on several machines share no file")
            if rows != {(1, min(2, samples))}:
                raise OSError("the frozen layers make a tensor that has no row for each sample")
            handle, path = tempfile.mkstemp(prefix="alkit-cache-")
            with open(handle, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, _places(like, samples)[-1])
        except OSError as error:
            log.warning("no outputs of frozen layers are stored, and training goes on: %s", error)
            if path:
                Path(path).unlink()
            return None
        return path


class _Store:
    """Records of samples in a file: inputs of unit `first`, each `like` this one."""

    def __init__(self, path: str, first: int, like: Any, samples: int) -> None:
        self.first, self.like, self.records = first, like, list[Tensor]()
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        self.valid = torch.frombuffer(memory, dtype=torch.bool, count=samples)
        for one, at in zip(tree.tensors(like), _places(like, samples), strict=False):
            size = samples * one.numel()
            record = torch.frombuffer(memory, dtype=one.dtype, count=size, offset=at)
            self.records.append(record.view(samples, *one.shape[1:]))

    def read(self, rows: Tensor) -> Any:
        """Return the stored outputs of samples, as they lay in memory."""
        records = iter(self.records)

        def read(like: Tensor) -> Tensor:
            found = next(records)[rows]
            last = like.dim() == 4 and not like.is_contiguous()
            return found.contiguous(memory_format=torch.channels_last) if last else found

        return tree.map_tensors(read, self.like)

    def write(self, rows: Tensor, made: Any) -> None:
        """Store the outputs of samples."""
        for record, own in zip(self.records, tree.tensors(made), strict=True):
            record[rows] = own.cpu()
        self.valid[rows] = True


def _places(like: Any, samples: int) -> list[int]:
    """Return where the records of each tensor begin in a file, and where it ends."""
    sizes = [samples, *(samples * one.nbytes for one in tree.tensors(like))]
    return list(accumulate(math.ceil(size / ALIGNED) * ALIGNED for size in sizes))
