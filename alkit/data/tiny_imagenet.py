"""Tiny ImageNet, read straight from its archive or folder."""

import contextlib
import hashlib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from alkit.data import archives, catalog, paths
from alkit.data.decode import decode
from alkit.data.files import replacing
from alkit.data.images import data_set
from alkit.data.parts import DataSet

# mean and std of the training images, as the AL publication has them
_SCALE = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
_THREADS, _CHUNK = 2, 1024
_FORM = 1  # of the kept arrays; another number makes them anew


class _Arrays(NamedTuple):
    """What is kept: bytes (N, 3, S, S), labels (N,), names (K,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    names: np.ndarray


def load_tiny_imagenet(
    *, seed: int = 0, size: int = 32, classes: int | None = None, validation: float = 0.1
) -> DataSet:
    """Load tiny ImageNet; its official validation images, whose labels are public, are the test.

    They may lie as published, in one folder with a list, or sorted into a folder a class.
    Decoded images are kept under `data/tiny_imagenet` if that can be written.

    Args:
        size: height and width that the 64 x 64 images are resized to.
        classes: how many of the first classes of `wnids.txt`; None for all that are there.
        validation: share of the training images held out, class by class, by the seed.
    Raises:
        FileNotFoundError: the set is not here; says how to get it.
        ValueError: damage, named with archive and file, or an option out of range.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    path = catalog.find("tiny_imagenet")
    key = f"{_FORM} {archives.fingerprint(path)} {size} {classes}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    cache = paths.data_dir() / "tiny_imagenet" / f"{name}.npz"
    arrays = _read_cache(cache)
    if arrays is None:
        arrays = _read(path, size, classes)
        # whole or not at all; a folder that cannot be written is no error
        with contextlib.suppress(OSError), replacing(cache) as partial, partial.open("wb") as file:
            np.savez(file, **arrays._asdict())
    parts = (arrays.train_x, arrays.train_y), (arrays.test_x, arrays.test_y)
    names, official = [str(name) for name in arrays.names], (100_000, 10_000)
    made = data_set("tiny_imagenet", parts, names, _SCALE, official, seed, validation)
    return replace(made, note=f"{made.note}, {len(names)} of 200 classes")


def _read_cache(path: Path) -> _Arrays | None:
    """Return what the file holds, or None where it is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _Arrays(*(arrays[name] for name in _Arrays._fields))
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
        return None


def _read(path: Path, size: int, classes: int | None) -> _Arrays:
    lists = {"wnids.txt": "", "words.txt": "", "val_annotations.txt": ""}
    for name, content in archives.members(path, lambda each: PurePosixPath(each).name in lists):
        lists[PurePosixPath(name).name] = content.decode("utf-8", "replace")
    wnids = lists["wnids.txt"].split()
    if not wnids:
        raise ValueError(f"{path}: there is no wnids.txt or it is empty: no tiny ImageNet is here")
    if classes is not None and not 1 <= classes <= len(wnids):
        raise ValueError(f"classes must be 1 to {len(wnids)}, got {classes}")
    chosen = {wnid: label for label, wnid in enumerate(wnids[:classes])}
    listed = _annotations(path, lists["val_annotations.txt"], set(wnids))

    def place(name: str) -> tuple[str, int] | None:
        """Return half and label of an image, None for other files and other classes."""
        match PurePosixPath(name).parts:
            case (*_, "val", "images", file):
                if file not in listed:
                    raise ValueError(f"{path}: {name} has no line in val_annotations.txt")
                half, wnid = "val", listed[file]
            case (*_, ("train" | "val") as half, wnid, "images", file):
                pass
            case (*_, ("train" | "val") as half, wnid, file) if file.endswith(".JPEG"):
                pass
            case _:
                return None
        return (half, chosen[wnid]) if wnid in chosen else None

    found: dict[str, list[tuple[int, str, np.ndarray]]] = {"train": [], "val": []}
    wanted = archives.members(path, lambda name: place(name) is not None)
    for name, pixels in _decoded(path, wanted, size):
        half, label = place(name) or ("", 0)
        found[half].append((label, PurePosixPath(name).name, pixels))
    train, val = (_stacked(path, half, found[half]) for half in ("train", "val"))
    words = dict(each.split("\t", 1) for each in lists["words.txt"].splitlines() if "\t" in each)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in chosen]
    return _Arrays(*train, *val, np.array(names))


def _annotations(path: Path, text: str, wnids: set[str]) -> dict[str, str]:
    """Return the class of each validation image that the list names."""
    labels = {}
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}: val_annotations.txt, line {number}"
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(f"{where}: {len(columns)} columns, expected a file name and its class")
        if columns[1] not in wnids:
            raise ValueError(f"{where}: class {columns[1]} is not in wnids.txt")
        labels[columns[0]] = columns[1]
    return labels


def _decoded(
    path: Path, files: Iterator[tuple[str, bytes]], size: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Decode in threads, some images at a time, so that the archive is never whole in memory."""
    with ThreadPoolExecutor(_THREADS) as pool:
        while chunk := list(islice(files, _CHUNK)):
            names, contents = zip(*chunk, strict=True)
            pixels = pool.map(decode, names, contents, repeat(path), repeat(size))
            yield from zip(names, pixels, strict=True)


def _stacked(
    path: Path, half: str, found: list[tuple[int, str, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Order by class and name, so that a folder and an archive give the same."""
    if not found:
        raise ValueError(f"{path}: there are no images of its {half} half")
    found.sort(key=lambda image: image[:2])
    return np.stack([x for *_, x in found]), np.array([y for y, *_ in found], dtype=np.int64)
