"""Sets of images: digits, tiny ImageNet, CIFAR, ImageNet32, MNIST, SVHN.

torchvision's readers are not used: they refuse parts of a set, and unpickle whatever a file asks
for. Images stay bytes (N, C, H, W); the parts scale them
when they make batches.
"""

import contextlib
import gzip
import hashlib
import io
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from alkit.data import archives, catalog, paths
from alkit.data.files import replacing
from alkit.data.parts import DataSet, Part, hold_out, stratified_split

Arrays = tuple[np.ndarray, np.ndarray]  # bytes (N, C, H, W) and labels (N,)
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the training images
DIGITS = tuple("0123456789")
TINY: Scale = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))  # as the AL publication has them


def _data_set(
    name: str,
    arrays: Sequence[Arrays],
    classes: Sequence[str],
    scale: Scale,
    official: tuple[int, int],
    seed: int,
    validation: float,
) -> DataSet:
    """Return a set of images of bytes, a share of each class of the training part held out.

    Args:
        arrays: of the training part and of the test part.
        official: how many training and test images the whole set has; the note says what is here.
    """
    mean, std = scale
    whole, last = (
        Part(torch.from_numpy(x), torch.from_numpy(y), len(classes), mean=mean, std=std)
        for x, y in arrays
    )
    kept, held = hold_out(whole.y, validation, seed=seed)
    note = (
        f"{len(whole):,} of {official[0]:,} official training images,"
        f" {len(last):,} of {official[1]:,} test images"
    )
    parts = whole.take(kept), whole.take(held), last
    return DataSet(name, *parts, len(classes), tuple(classes), note=note)


def load_digits(*, seed: int = 0, size: int = 8) -> DataSet:
    """Load scikit-learn's digits: 1,078 training, 359 validation and 360 test images.

    Pixels are scaled to [0, 1], then standardised with mean and sd of the training part.

    Args:
        size: height and width; the 8 x 8 originals are stretched to it, for networks that shrink
            a picture more than three times.
    """
    spec = find_spec("sklearn")  # importing it would take 1.5 s in every process
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("digits come with scikit-learn: pip install alkit[vision]")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)  # 64 pixels and a class
    x = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16.0
    if size != x.shape[2]:
        x = interpolate(x, (size, size), mode="bilinear")
    y = torch.from_numpy(table[:, -1]).long()
    rows = stratified_split(y, seed=seed)
    train_x = x[rows[0]]
    x = (x - train_x.mean()) / train_x.std()
    train, validation, test = (Part(x[part], y[part], 10) for part in rows)
    return DataSet("digits", train, validation, test, 10, DIGITS)


# ---- tiny ImageNet


def load_tiny_imagenet(
    *, seed: int = 0, size: int = 32, classes: int | None = None, validation: float = 0.1
) -> DataSet:
    """Load tiny ImageNet; its official validation images, whose labels are public, are the test.

    Decoded images are kept under `data/tiny_imagenet` if that can be written.

    Args:
        size: height and width that the 64 x 64 images are resized to.
        classes: how many of the first classes of `wnids.txt`; None for all that are there.
        validation: share of the training images held out, class by class, by the seed.
    """
    path = catalog.find("tiny_imagenet")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    states = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    name = hashlib.sha256(repr((2, states, size, classes)).encode()).hexdigest()[:16]
    cache = paths.data_dir() / "tiny_imagenet" / f"{name}.npz"
    try:
        with cache.open("rb") as held, np.load(held, allow_pickle=False) as kept:
            arrays = [kept[f"arr_{number}"] for number in range(5)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, TypeError):
        arrays = _tiny(path, size, classes)
        # whole or not at all; a folder that cannot be written is no error
        with contextlib.suppress(OSError), replacing(cache) as partly, partly.open("wb") as file:
            np.savez(file, *arrays)
    *numbers, names = arrays
    parts = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    official = 100_000, 10_000
    made = _data_set("tiny_imagenet", parts, names.tolist(), TINY, official, seed, validation)
    return replace(made, note=f"{made.note}, {len(names)} of 200 classes")


def _tiny(path: Path, size: int, classes: int | None) -> list[np.ndarray]:
    """Read training and test images and labels, and the names of the classes."""
    lists = dict.fromkeys(("wnids.txt", "words.txt", "val_annotations.txt"), "")
    for name, content in archives.members(path, lambda each: PurePosixPath(each).name in lists):
        lists[PurePosixPath(name).name] = content.decode("utf-8", "replace")
    wnids, words, listed = lists.values()  # many copies have no third: val/ is sorted by class
    if classes is not None and not 1 <= classes <= len(wnids.split()):
        raise ValueError(f"classes is {classes}: give 1 to {len(wnids.split())}")
    chosen = {wnid: label for label, wnid in enumerate(wnids.split()[:classes])}
    of_val = dict(line.split("\t")[:2] for line in listed.splitlines())

    def place(name: str) -> tuple[str, int, str] | None:
        """Return half, label and file of an image, None for other files and other classes."""
        *above, file = PurePosixPath(name).parts
        half = next((each for each in ("train", "val") if each in above), "")
        wnid = of_val.get(file) or next((each for each in above if each in chosen), "")
        wanted = half and file.endswith(".JPEG") and wnid in chosen
        return (half, chosen[wnid], file) if wanted else None

    def read(image: tuple[str, bytes]) -> tuple[tuple[str, int, str] | None, np.ndarray]:
        return place(image[0]), _decoded(image[1], size)

    with ThreadPoolExecutor(2) as pool:
        images = archives.members(path, lambda name: place(name) is not None)
        found = [each for each in pool.map(read, images) if each[0] is not None]
    arrays = []
    for half in ("train", "val"):
        own = [(where[1:], x) for where, x in found if where is not None and where[0] == half]
        own.sort(key=lambda image: image[0])  # an archive has an order of its own
        arrays += [np.stack([x for _, x in own]), np.array([y for (y, _), _ in own], np.int64)]
    named = dict(each.split("\t", 1) for each in words.splitlines() if "\t" in each)
    names = [named.get(wnid, wnid).split(",")[0].strip() for wnid in chosen]
    return [*arrays, np.array(names)]


def _decoded(content: bytes, size: int) -> np.ndarray:
    """Return bytes (3, size, size), as torchvision's Resize of the publication makes them."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


# ---- pickled batches of 32 x 32 images


def load_cifar10(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-10 from the training batches that are there, and its test batch."""
    scale = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    train = [f"data_batch_{number}" for number in range(1, 6)]
    files = "batches.meta", train, "test_batch"
    return _cifar("cifar10", files, "label", scale, seed, validation)


def load_cifar100(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-100 with its 100 fine classes."""
    scale = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    return _cifar("cifar100", ("meta", ["train"], "test"), "fine_label", scale, seed, validation)


def _cifar(
    name: str,
    files: tuple[str, list[str], str],
    key: str,
    scale: Scale,
    seed: int,
    validation: float,
) -> DataSet:
    path, (meta, train, test) = catalog.find(name), files
    wanted = {meta, test, *train}
    read = archives.members(path, lambda each: PurePosixPath(each).name in wanted)
    found = {PurePosixPath(each).name: archives.unpickle(content) for each, content in read}
    if missing := [each for each in (meta, train[0], test) if each not in found]:
        raise ValueError(f"{path} holds no {missing[0]}: it is another set or incomplete")
    names = [each.decode() for each in _value(found[meta], f"{key}_names")]
    batches = [_batch(found[each], f"{key}s", 0) for each in train if each in found]
    parts = _joined(batches), _batch(found[test], f"{key}s", 0)
    return _data_set(name, parts, names, scale, (50_000, 10_000), seed, validation)


def load_imagenet32(
    *, seed: int = 0, validation: float = 0.04, files: int | None = None
) -> DataSet:
    """Load ImageNet at 32 x 32 pixels (Chrabaszcz et al., 2017), official files or re-packed ones.

    official     train_data_batch_1 .. 10, val_data                              in one folder
    re-packed    out_data_train/train_data_batch_1 .. 10, out_data_val/the same names

    Args:
        validation: share of each class held out; by default about 50 images.
        files: read so many of the ten training files; None for all, which must be there.
    """
    home = catalog.find("imagenet32")
    names = [f"train_data_batch_{number}" for number in range(1, 11)]
    train, test = [home / name for name in names[:files]], [home / "val_data"]
    if home.name == "out_data_train":
        test = [home.parent / "out_data_val" / name for name in names]
    read = [
        _joined([_batch(archives.unpickle(path.read_bytes()), "labels", 1) for path in half])
        for half in (train, test)
    ]
    scale = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classes = list(map(str, range(1, 1001)))
    return _data_set("imagenet32", read, classes, scale, (1_281_167, 50_000), seed, validation)


def _batch(content: Any, key: str, first: int) -> Arrays:
    """Return images (N, 3, 32, 32) and labels from 0 of one file, whose labels begin at `first`."""
    labels = np.array(_value(content, key), dtype=np.int64) - first
    return _value(content, "data").reshape(-1, 3, 32, 32), labels


def _value(content: Any, name: str) -> Any:
    """Return an entry, whose name is text or bytes by the Python that wrote it."""
    return content[name] if name in content else content[name.encode()]


def _joined(batches: Sequence[Arrays]) -> Arrays:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


# ---- digits of post and streets


def load_mnist(*, seed: int = 0, validation: float = 0.1, side: int = 28) -> DataSet:
    """Load MNIST: 60,000 training images (1, 28, 28), some held out, and 10,000 test images.

    Args:
        side: 28, or 32 for networks with five pools: a border of two black pixels.
    """
    if side not in (28, 32):
        raise ValueError(f"side is {side}: give 28, or 32 for a border of two pixels")
    read, border = partial(_idx, catalog.find("mnist")), (side - 28) // 2
    parts = []
    for part in ("train", "t10k"):
        x = np.pad(read(f"{part}-images-idx3-ubyte"), ((0, 0), (border, border), (border, border)))
        parts.append((x[:, None], read(f"{part}-labels-idx1-ubyte").astype(np.int64)))
    scale = (0.1307,), (0.3081,)
    return _data_set("mnist", parts, DIGITS, scale, (60_000, 10_000), seed, validation)


def _idx(folder: Path, name: str) -> np.ndarray:
    """Return the numbers of an IDX file of bytes, packed with gzip or not."""
    names = (f"{name}.gz", name, name.replace("-idx", ".idx"))  # the last as copies have it
    path = next((folder / each for each in names if (folder / each).exists()), folder / name)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(archives.MOST)  # a shape in a header is believed where it fits
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def load_svhn(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load SVHN's cropped digits (3, 32, 32): 73,257 for training and 26,032 for test."""
    from scipy.io import loadmat

    parts = []
    for part in ("train", "test"):
        found = loadmat(catalog.find("svhn") / f"{part}_32x32.mat", variable_names=("X", "y"))
        labels = found["y"].ravel().astype(np.int64) % 10  # the owners call a zero 10
        parts.append((np.ascontiguousarray(found["X"].transpose(3, 2, 0, 1)), labels))
    scale = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return _data_set("svhn", parts, DIGITS, scale, (73_257, 26_032), seed, validation)
