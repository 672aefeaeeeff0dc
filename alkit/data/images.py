"""Sets of images whose files hold numbers: digits, CIFAR, ImageNet32, MNIST, SVHN.

torchvision's readers are not used: they refuse parts of a set, and unpickle whatever a file asks
for. Images stay bytes (N, C, H, W); the parts scale them when they make batches.
"""

import gzip
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from alkit.data import archives, catalog
from alkit.data.extras import extra
from alkit.data.parts import DataSet, Part, hold_out, stratified_split

Arrays = tuple[np.ndarray, np.ndarray]  # bytes (N, C, H, W) and labels (N,)
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the training images

DIGITS = tuple("0123456789")
CLOTHES = "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"


def data_set(
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
        raise FileNotFoundError(
            "the digits come with scikit-learn, which is not installed: pip install alkit[vision]"
        )
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


# ---- pickled batches of 32 x 32 images


def load_cifar10(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-10 from the training batches that are there, and its test batch.

    Args:
        validation: share of the training images held out, class by class, by the seed.
    Raises:
        FileNotFoundError: the set is not here; says how to get it.
        ValueError: damage, named with archive and file, or an option out of range.
    """
    scale = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    train = [f"data_batch_{number}" for number in range(1, 6)]
    return _cifar(
        "cifar10", ("batches.meta", train, "test_batch"), "label", scale, seed, validation
    )


def load_cifar100(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load CIFAR-100 with its 100 fine classes; arguments and errors as `load_cifar10`."""
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
    found = {
        PurePosixPath(each).name: archives.unpickle(f"{path}: {each}", content)
        for each, content in archives.members(
            path, lambda each: PurePosixPath(each).name in (meta, test, *train)
        )
    }
    there = [each for each in train if each in found]
    if missing := [each for each in (meta, test) if each not in found] + train[: not there]:
        raise ValueError(f"{path}: there is no {missing[0]}; it is incomplete, fetch it again")
    names = [each.decode() for each in _value(found[meta], f"{key}_names") or ()]
    if not names:
        raise ValueError(f"{path}: {meta} holds no {key}_names")
    *batches, last = (
        _batch(f"{path}: {each}", found[each], f"{key}s", 0, len(names)) for each in (*there, test)
    )
    official = 50_000, 10_000
    return data_set(name, (_joined(batches), last), names, scale, official, seed, validation)


def load_imagenet32(
    *, seed: int = 0, validation: float = 0.04, files: int | None = None
) -> DataSet:
    """Load ImageNet at 32 x 32 pixels (Chrabaszcz et al., 2017), official files or re-packed ones.

    official     train_data_batch_1 .. 10, val_data                              in one folder
    re-packed    out_data_train/train_data_batch_1 .. 10, out_data_val/the same names

    Args:
        validation: share of each class held out; by default about 50 images.
        files: read so many of the ten training files; None for all, which must be there.
    Raises: what `load_cifar10` raises.
    """
    if files is not None and not 1 <= files <= 10:
        raise ValueError(f"files is {files}: give 1 to 10")
    home = catalog.find("imagenet32")
    names = [f"train_data_batch_{number}" for number in range(1, 11)]
    train, test = [home / name for name in names[:files]], [home / "val_data"]
    if home.name == "out_data_train":
        test = [home.parent / "out_data_val" / name for name in names]
    form = "labels", 1, 1000
    if missing := [str(path) for path in train + test if not path.exists()]:
        raise ValueError(
            f"ImageNet32 is incomplete: there is no {', '.join(missing)}; fetch it again, or read"
            " fewer training files with files=..."
        )
    parts = [
        _joined([_batch(str(p), archives.unpickle(str(p), p.read_bytes()), *form) for p in half])
        for half in (train, test)
    ]
    scale = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classes = list(map(str, range(1, 1001)))
    return data_set("imagenet32", parts, classes, scale, (1_281_167, 50_000), seed, validation)


def _batch(source: str, content: Any, key: str, first: int, num_classes: int) -> Arrays:
    """Return images (N, 3, 32, 32) and labels from 0 of one file, whose labels begin at `first`."""
    rows, labels = _value(content, "data"), _value(content, key)
    good = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and isinstance(labels, list)
    if not good or rows.shape != (len(labels), 3072):
        raise ValueError(f"{source}: no batch of 32 x 32 images with {key}")
    last = first + num_classes - 1
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not first <= label <= last:
            raise ValueError(f"{source}: label {row} is {label}, expected {first} to {last}")
    return rows.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64) - first


def _value(content: Any, name: str) -> Any:
    """Return an entry, whose name is text or bytes by the Python that wrote it."""
    content = content if isinstance(content, dict) else {}
    return content.get(name, content.get(name.encode()))


def _joined(batches: Sequence[Arrays]) -> Arrays:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


# ---- digits of post and streets


def load_mnist(*, seed: int = 0, validation: float = 0.1, side: int = 28) -> DataSet:
    """Load MNIST: 60,000 training images (1, 28, 28), some held out, and 10,000 test images.

    Args:
        side: 28, or 32 for networks with five pools: a border of two black pixels.
    Raises: what `load_cifar10` raises.
    """
    return _mnist("mnist", DIGITS, ((0.1307,), (0.3081,)), seed, validation, side)


def load_fashion_mnist(*, seed: int = 0, validation: float = 0.1, side: int = 28) -> DataSet:
    """Load Fashion-MNIST: clothes in the files and sizes of MNIST; as `load_mnist`."""
    clothes = CLOTHES.split(",")
    return _mnist("fashion_mnist", clothes, ((0.2860,), (0.3530,)), seed, validation, side)


def _mnist(
    name: str, classes: Sequence[str], scale: Scale, seed: int, validation: float, side: int
) -> DataSet:
    if side not in (28, 32):
        raise ValueError(f"side is {side}: give 28, or 32 for a border of two pixels")
    folder, border = catalog.find(name), (side - 28) // 2
    parts = []
    for part in ("train", "t10k"):
        x = _idx(folder, f"{part}-images-idx3-ubyte", 3)
        y = _idx(folder, f"{part}-labels-idx1-ubyte", 1)
        x = np.pad(x, ((0, 0), (border, border), (border, border)))
        parts.append((x[:, None], y.astype(np.int64)))
    return data_set(name, parts, classes, scale, (60_000, 10_000), seed, validation)


def _idx(folder: Path, name: str, dims: int) -> np.ndarray:
    """Return the numbers of an IDX file of bytes, packed with gzip or not."""
    names = (f"{name}.gz", name, name.replace("-idx", ".idx"))  # the last as copies have it
    path = next((folder / each for each in names if (folder / each).exists()), None)
    if path is None:
        raise ValueError(f"{folder}: there is no {name}.gz; it is incomplete, fetch it again")
    with (
        archives.naming(path),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        content = file.read(archives.MOST)  # a size in a header is believed when it fits
    head = 4 + 4 * dims
    if len(content) < head or content[:4] != bytes((0, 0, 8, dims)):
        raise ValueError(f"{path} is no IDX file of bytes in {dims} dimensions")
    shape = np.frombuffer(content, ">u4", dims, offset=4)
    if len(content) - head != int(np.prod(shape, dtype=np.uint64)):
        raise ValueError(f"{path} has {len(content) - head:,} numbers; its header says {shape}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def load_svhn(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load SVHN's cropped digits: 73,257 training images (3, 32, 32), some held out, 26,032 test.

    Raises: what `load_cifar10` raises.
    """
    folder = catalog.find("svhn")
    parts = [_matlab(folder / f"{part}_32x32.mat") for part in ("train", "test")]
    scale = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return data_set("svhn", parts, DIGITS, scale, (73_257, 26_032), seed, validation)


def _matlab(path: Path) -> Arrays:
    if not path.exists():
        raise ValueError(f"there is no {path}; the set is incomplete, fetch it again")
    with extra("vision", "SVHN"):
        from scipy.io import loadmat
    try:
        found = loadmat(path, variable_names=("X", "y"))
        x, y = found["X"], found["y"].ravel()
    except Exception as error:  # what a broken file raises is of any type
        raise ValueError(f"{path} is damaged or no SVHN: {type(error).__name__}") from error
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.shape[3:] != y.shape:
        raise ValueError(f"{path} has {x.shape} images and {y.shape} labels")
    labels = y.astype(np.int64) % 10  # the owners call a zero 10
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels
