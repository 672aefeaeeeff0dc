"""Image sets: tiny ImageNet, CIFAR-10 and CIFAR-100, read straight from their archives.

Images stay bytes (N, 3, H, W); the parts scale them when they make batches.
"""

import contextlib
import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alkit.data import archives, catalog, paths
from alkit.data.extras import extra
from alkit.data.files import replacing
from alkit.data.parts import DataSet, Part, hold_out

__all__ = ["load_cifar10", "load_cifar100", "load_tiny_imagenet"]

# mean and std of the training images, as the AL publication has them
_TINY_SCALE = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
_CIFAR10_SCALE = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CIFAR100_SCALE = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
_THREADS, _CHUNK = 2, 1024
_FORM = 1  # of the kept arrays; another number makes them anew


class _Arrays(NamedTuple):
    """What is kept of tiny ImageNet: bytes (N, 3, S, S), labels (N,), names (K,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    names: np.ndarray


def load_tiny_imagenet(
    *, seed: int = 0, size: int = 32, classes: int | None = None, validation: float = 0.1
) -> DataSet:
    """Load tiny ImageNet; its official validation images, whose labels are public, are the test.

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
    arrays = _kept(path, size, classes)
    note = (
        f"{len(arrays.train_y):,} of 100,000 official training images,"
        f" {len(arrays.test_y):,} of 10,000 test images, {len(arrays.names)} of 200 classes"
    )
    train, test = ((arrays.train_x, arrays.train_y), (arrays.test_x, arrays.test_y))
    names = [str(name) for name in arrays.names]
    return _data_set("tiny_imagenet", train, test, names, _TINY_SCALE, note, seed, validation)


def load_cifar10(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-10 from the training batches that are there, and its test batch.

    Raises: what `load_tiny_imagenet` raises.
    """
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    found = _pickles(catalog.find("cifar10"), "batches.meta", batches, "test_batch")
    return _cifar("cifar10", found, b"label", _CIFAR10_SCALE, seed, validation)


def load_cifar100(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-100 with its 100 fine classes.

    Raises: what `load_tiny_imagenet` raises.
    """
    found = _pickles(catalog.find("cifar100"), "meta", ["train"], "test")
    return _cifar("cifar100", found, b"fine_label", _CIFAR100_SCALE, seed, validation)


def _data_set(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: Sequence[str],
    scale: tuple[tuple[float, ...], tuple[float, ...]],
    note: str,
    seed: int,
    validation: float,
) -> DataSet:
    def part(x: np.ndarray, y: np.ndarray) -> Part:
        mean, std = scale
        labels: Tensor = torch.from_numpy(y)
        return Part(torch.from_numpy(x), labels, len(class_names), mean=mean, std=std)

    official = part(*train)
    kept, held = hold_out(official.y, validation, seed=seed)
    parts = official.take(kept), official.take(held), part(*test)
    return DataSet(name, *parts, len(class_names), tuple(class_names), note=note)


# Tiny ImageNet


def _kept(path: Path, size: int, classes: int | None) -> _Arrays:
    """Return the decoded images from `data/tiny_imagenet`, or decode and keep them there."""
    key = f"{_FORM} {archives.fingerprint(path)} {size} {classes}"
    file = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    cache = paths.data_dir() / "tiny_imagenet" / file
    arrays = _read_cache(cache)
    if arrays is None:
        arrays = _read_tiny(path, size, classes)
        _write_cache(cache, arrays)
    return arrays


def _read_tiny(path: Path, size: int, classes: int | None) -> _Arrays:
    wnids, names, annotations = _read_lists(path)
    if classes is not None and not 1 <= classes <= len(wnids):
        raise ValueError(f"classes must be 1 to {len(wnids)}, got {classes}")
    chosen = {wnid: label for label, wnid in enumerate(wnids[:classes])}

    def place(name: str) -> tuple[str, int] | None:
        """Return half and label of an image, None for other files and other classes."""
        wnid, half = _class_of(path, name, annotations)
        return (half, chosen[wnid]) if wnid in chosen else None

    found: dict[str, list[tuple[int, str, np.ndarray]]] = {"train": [], "val": []}
    wanted = archives.members(path, lambda name: place(name) is not None)
    for name, pixels in _decoded(path, wanted, size):
        half, label = place(name) or ("", 0)
        found[half].append((label, PurePosixPath(name).name, pixels))
    train, val = (_stacked(path, half, found[half]) for half in ("train", "val"))
    return _Arrays(*train, *val, np.array(names[:classes]))


def _read_lists(path: Path) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the classes, their names, and the class of each validation image."""
    lists = {"wnids.txt": "", "words.txt": "", "val_annotations.txt": ""}
    found = {}
    for name, content in archives.members(path, lambda n: PurePosixPath(n).name in lists):
        found[PurePosixPath(name).name] = content.decode("utf-8", "replace").splitlines()
    for name in ("wnids.txt", "val_annotations.txt"):
        if name not in found:
            raise ValueError(f"{path}: there is no {name}; it is no tiny ImageNet, or incomplete")
    wnids = [line.strip() for line in found["wnids.txt"] if line.strip()]
    if not wnids:
        raise ValueError(f"{path}: wnids.txt is empty")
    words = dict(line.split("\t", 1) for line in found.get("words.txt", []) if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return wnids, names, _annotations(path, found["val_annotations.txt"], set(wnids))


def _annotations(path: Path, lines: list[str], wnids: set[str]) -> dict[str, str]:
    labels = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}: val_annotations.txt, line {number}"
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(f"{where}: {len(columns)} columns, expected a file name and its class")
        if columns[1] not in wnids:
            raise ValueError(f"{where}: class {columns[1]} is not in wnids.txt")
        labels[columns[0]] = columns[1]
    return labels


def _class_of(path: Path, name: str, annotations: dict[str, str]) -> tuple[str, str]:
    """Return class and half of an image of the archive; the class of other files is empty."""
    match PurePosixPath(name).parts:
        case (*_, "train", wnid, "images", _):
            return wnid, "train"
        case (*_, "val", "images", file):
            if file not in annotations:
                raise ValueError(f"{path}: {name} has no line in val_annotations.txt")
            return annotations[file], "val"
    return "", ""


def _decoded(
    path: Path, files: Iterator[tuple[str, bytes]], size: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Decode in threads, some images at a time, so that the archive is never whole in memory."""
    with ThreadPoolExecutor(_THREADS) as pool:
        while chunk := list(islice(files, _CHUNK)):
            names, contents = zip(*chunk, strict=True)
            pixels = pool.map(decode, names, contents, repeat(path), repeat(size))
            yield from zip(names, pixels, strict=True)


def decode(name: str, content: bytes, path: Path, size: int) -> np.ndarray:
    """Return RGB bytes (3, size, size)."""
    with extra("vision", "decoding images"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(content)) as image:
            # Pillow widens the filter when it shrinks, as torchvision's Resize of the publication
            small = _bytes(image).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(
            f"{path}: {name} is no readable image ({error}); fetch the archive again"
        ) from error
    return np.asarray(small).transpose(2, 0, 1)


def _bytes(image: Any) -> Any:
    """Scale what has more than eight bits a pixel, which Pillow would clip to white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    from PIL import Image

    values = np.asarray(image, dtype=np.float64)
    top = 255.0 if values.max() <= 255.0 and image.mode != "F" else 65535.0
    top = 1.0 if image.mode == "F" and values.max() <= 1.0 else top
    return Image.fromarray((values / top * 255.0).clip(0, 255).astype(np.uint8))


def _stacked(
    path: Path, half: str, found: list[tuple[int, str, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Order by class and name, so that a folder and an archive give the same."""
    if not found:
        raise ValueError(f"{path}: there are no images of its {half} half")
    found.sort(key=lambda image: image[:2])
    return np.stack([x for *_, x in found]), np.array([y for y, *_ in found], dtype=np.int64)


def _read_cache(path: Path) -> _Arrays | None:
    """Return what the file holds, or None where it is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _Arrays(*(arrays[name] for name in _Arrays._fields))
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
        return None


def _write_cache(path: Path, arrays: _Arrays) -> None:
    """Write the file whole or not at all; a folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, **arrays._asdict())


# CIFAR


class _Pickles(NamedTuple):
    path: Path
    meta: dict[bytes, Any]
    train: dict[str, dict[bytes, Any]]
    test: tuple[str, dict[bytes, Any]]


def _pickles(path: Path, meta: str, train: Sequence[str], test: str) -> _Pickles:
    """Read the files that are there; the names and the test images must be."""
    wanted = {meta, test, *train}
    files = archives.members(path, lambda name: PurePosixPath(name).name in wanted)
    found = {PurePosixPath(n).name: archives.unpickle(path, n, content) for n, content in files}
    batches = {name: found[name] for name in train if name in found}
    missing = [name for name in (meta, test) if name not in found] + [train[0]] * (not batches)
    if missing:
        raise ValueError(f"{path}: there is no {missing[0]}; it is incomplete, fetch it again")
    return _Pickles(path, found[meta], batches, (test, found[test]))


def _cifar(
    name: str,
    found: _Pickles,
    key: bytes,
    scale: tuple[tuple[float, ...], tuple[float, ...]],
    seed: int,
    validation: float,
) -> DataSet:
    names = [label.decode() for label in found.meta.get(key + b"_names", ())]
    if not names:
        raise ValueError(f"{found.path}: the file of names holds no {key.decode()}_names")
    key += b"s"
    batches = [_batch(found.path, *item, key, len(names)) for item in found.train.items()]
    train = tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    test = _batch(found.path, *found.test, key, len(names))
    note = (
        f"{len(train[1]):,} of 50,000 official training images,"
        f" {len(test[1]):,} of 10,000 test images"
    )
    return _data_set(name, (train[0], train[1]), test, names, scale, note, seed, validation)


def _batch(
    path: Path, name: str, content: Any, key: bytes, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 3, 32, 32) and labels (N,) of one file."""
    content = content if isinstance(content, dict) else {}
    rows, labels = content.get(b"data"), content.get(key)
    good = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and isinstance(labels, list)
    if not good or rows.shape != (len(labels), 3072):
        raise ValueError(f"{path}: {name}: no batch of images with {key.decode()}")
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < num_classes:
            raise ValueError(
                f"{path}: {name}: label {row} is {label}, expected 0 to {num_classes - 1}"
            )
    return rows.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)
