"""A file of features, one record a sample, that all processes of a machine share.

    header.json     layers, shape, type, variants
    states          a byte a slot: 0 empty, 1 being written, 2 valid
    features        records of a fixed size, mapped into memory

The page cache is the memory level, the file the disk level. A record is valid only once it has been
written whole: first the record, then its state. Room on the disk is taken when the store is made,
so a full disk is an error then, and not a crash in the middle of a write.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alkit.data.files import replacing

EMPTY, WRITING, VALID = 0, 1, 2


class StoreError(OSError):
    """A store that can't be made or used."""


class Store:
    """Features of frozen layers.

    Make one with `Store.create`, on one process; others `Store.open` it.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.folder, self.header = folder, header
        self.samples, self.variants = header["samples"], header["variants"]
        self.shape, self.dtype = tuple(header["shape"]), getattr(torch, header["dtype"])
        slots = self.samples * self.variants
        count = int(np.prod(self.shape))
        self.features = torch.from_file(
            str(folder / "features"), shared=True, size=slots * count, dtype=self.dtype
        ).view(slots, *self.shape)
        self.states = np.memmap(folder / "states", np.uint8, "r+", shape=(slots,))

    @staticmethod
    def create(
        folder: Path,
        *,
        layers: int,
        samples: int,
        shape: Sequence[int],
        dtype: str = "float32",
        variants: int = 1,
    ) -> "Store":
        """Make a store in a new folder.

        Raises:
            StoreError: the folder exists, cannot be written, or the disk is full.
        """
        record = int(np.prod(shape)) * getattr(torch, dtype).itemsize
        slots = samples * variants
        header = {
            "layers": layers,
            "samples": samples,
            "shape": list(shape),
            "dtype": dtype,
            "variants": variants,
        }
        try:
            folder.mkdir(parents=True)
            for name, size in (("features", slots * record), ("states", slots)):
                with (folder / name).open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            with replacing(folder / "header.json") as partial:
                partial.write_text(json.dumps(header))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StoreError(
                f"no feature store of {slots * record / 2**20:.0f} MiB at {folder}"
                f" ({error.strerror or error}): give another cache folder, or switch the cache off"
            ) from error
        return Store(folder, header)

    @staticmethod
    def open(folder: Path) -> "Store":
        """Open a store that was made."""
        return Store(folder, json.loads((folder / "header.json").read_text()))

    def slots_of(self, rows: Tensor, variant: int = 0) -> np.ndarray:
        """Return the slots of samples."""
        slots: np.ndarray = rows.numpy() * self.variants + variant % self.variants
        return slots

    def valid(self, slots: np.ndarray) -> np.ndarray:
        """Return which slots can be read, as bool."""
        return np.asarray(self.states[slots] == VALID)

    def read(self, slots: np.ndarray) -> Tensor:
        """Return the features of valid slots."""
        return self.features[torch.from_numpy(slots)]

    def write(self, slots: np.ndarray, features: Tensor) -> int:
        """Write features; return how many bytes were written."""
        self.states[slots] = WRITING
        self.features[torch.from_numpy(slots)] = features
        self.states[slots] = VALID
        return features.nbytes
