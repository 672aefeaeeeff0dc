"""Read MNIST, Fashion-MNIST (IDX files) and SVHN (MATLAB files), as their owners publish them.

Neither holds anything but numbers; sizes are compared with what the headers say before they are
believed.
"""

import gzip
import struct
from pathlib import Path

import numpy as np
import torch

from alkit.data import catalog
from alkit.data.extras import extra
from alkit.data.parts import DataSet, Part, hold_out

__all__ = ["load_fashion_mnist", "load_mnist", "load_svhn", "read_idx"]

_MNIST_SCALE = (0.1307,), (0.3081,)
_FASHION_SCALE = (0.2860,), (0.3530,)
_FASHION = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_SVHN_SCALE = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
_IDX_BYTES = 0x08  # the type byte of unsigned bytes
_MOST = 1 << 28  # bytes of one file, unpacked: five times the largest official one


def load_mnist(*, seed: int = 0, validation: float = 0.1, side: int = 28) -> DataSet:
    """Load MNIST: 60,000 training images (1, 28, 28), some held out, and 10,000 test images.

    Args:
        side: 28, or 32 for networks with five pools: a border of two black pixels.
    Raises:
        FileNotFoundError: it is not here; says how to get it.
        ValueError: a file is damaged, or `side` is another number.
    """
    return _digits("mnist", _idx_pairs("mnist", side), _MNIST_SCALE, seed, validation)


def load_fashion_mnist(*, seed: int = 0, validation: float = 0.1, side: int = 28) -> DataSet:
    """Load Fashion-MNIST: clothes in the files and sizes of MNIST.

    Args, raises: those of `load_mnist`.
    """
    pairs = _idx_pairs("fashion_mnist", side)
    return _digits("fashion_mnist", pairs, _FASHION_SCALE, seed, validation, _FASHION)


def load_svhn(*, seed: int = 0, validation: float = 0.1) -> DataSet:
    """Load SVHN's cropped digits: 73,257 training images (3, 32, 32), some held out, 26,032 test.

    Raises: what `load_mnist` raises.
    """
    folder = catalog.find("svhn")
    arrays = [_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test")]
    return _digits("svhn", arrays, _SVHN_SCALE, seed, validation)


def _idx_pairs(name: str, side: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images (N, 1, side, side) and labels of the training and the test files."""
    if side not in (28, 32):
        raise ValueError(f"side is {side}: give 28, or 32 for a border of two pixels")
    folder = catalog.find(name)
    border = (side - 28) // 2
    arrays = []
    for part in ("train", "t10k"):
        x = read_idx(_file(folder, f"{part}-images-idx3-ubyte"), dims=3)
        y = read_idx(_file(folder, f"{part}-labels-idx1-ubyte"), dims=1)
        x = np.pad(x, ((0, 0), (border, border), (border, border)))
        arrays.append((x[:, None], y.astype(np.int64)))
    return arrays


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Return the numbers of an IDX file of bytes, packed with gzip or not.

    Raises:
        ValueError: another type or number of dimensions, or another length than its header says.
    """
    opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    try:
        with opened as file:
            content = file.read(_MOST)
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    head = 4 + 4 * dims
    if len(content) < head or content[:4] != bytes((0, 0, _IDX_BYTES, dims)):
        raise ValueError(f"{path} is no IDX file of bytes in {dims} dimensions")
    shape = struct.unpack(f">{dims}I", content[4:head])
    if len(content) - head != int(np.prod(shape, dtype=np.uint64)):
        raise ValueError(f"{path} has {len(content) - head:,} numbers; its header says {shape}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            return path
    raise ValueError(f"{folder}: there is no {name}.gz; it is incomplete, fetch it again")


def _svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
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


def _digits(
    name: str,
    arrays: list[tuple[np.ndarray, np.ndarray]],
    scale: tuple[tuple[float, ...], tuple[float, ...]],
    seed: int,
    validation: float,
    names: tuple[str, ...] = tuple("0123456789"),
) -> DataSet:
    mean, std = scale
    official, test = (
        Part(torch.from_numpy(x), torch.from_numpy(y), 10, mean=mean, std=std) for x, y in arrays
    )
    kept, held = hold_out(official.y, validation, seed=seed)
    note = f"{len(official):,} training and {len(test):,} test images"
    return DataSet(name, official.take(kept), official.take(held), test, 10, names, note=note)
