"""Read ImageNet at 32 x 32 pixels (Chrabaszcz et al., 2017), official files or re-packed ones.

official     train_data_batch_1 .. 10, val_data                                in one folder
re-packed    out_data_train/train_data_batch_1 .. 10, out_data_val/the same names
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alkit.data import archives, catalog
from alkit.data.parts import DataSet, Part, hold_out

__all__ = ["load_imagenet32"]

_SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLASSES = 1000
_BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))


def load_imagenet32(
    *, seed: int = 0, validation: float = 0.04, files: int | None = None
) -> DataSet:
    """Load it: 1,281,167 training images (3, 32, 32), some held out, and 50,000 test images.

    Args:
        validation: share of each class held out; by default about 50 images.
        files: read so many of the ten training files; None for all, which must be there.
    Raises:
        FileNotFoundError: it is not here; says how to get it.
        ValueError: files are missing or damaged; names them.
    """
    if files is not None and not 1 <= files <= len(_BATCHES):
        raise ValueError(f"files is {files}: give 1 to {len(_BATCHES)}")
    found = catalog.find("imagenet32")
    if found.name == "out_data_train":
        train, test = found, [found.parent / "out_data_val" / name for name in _BATCHES]
    else:
        train, test = found, [found / "val_data"]
    wanted = [train / name for name in _BATCHES[:files]]
    _check_there(wanted + test)
    x, y = _joined(wanted)
    test_x, test_y = _joined(test)
    mean, std = _SCALE
    official, last = (
        Part(torch.from_numpy(images), torch.from_numpy(labels), _CLASSES, mean=mean, std=std)
        for images, labels in ((x, y), (test_x, test_y))
    )
    kept, held = hold_out(official.y, validation, seed=seed)
    note = f"{len(official):,} of 1,281,167 official training images, {len(last):,} of 50,000 test"
    names = tuple(str(number) for number in range(1, _CLASSES + 1))
    return DataSet(
        "imagenet32", official.take(kept), official.take(held), last, _CLASSES, names, note=note
    )


def _check_there(paths: Sequence[Path]) -> None:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise ValueError(
            f"ImageNet32 is incomplete: there is no {', '.join(missing)}; fetch it again, or read"
            " fewer training files with files=..."
        )


def _joined(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 3, 32, 32) and labels from 0, of all files."""
    parts = [_read(path) for path in paths]
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = archives.unpickle(path, path.name, path.read_bytes())
    rows, labels = (_value(content, name) for name in ("data", "labels"))
    good = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and isinstance(labels, list)
    if not good or rows.shape != (len(labels), 3072):
        raise ValueError(f"{path}: no batch of 32 x 32 images with labels")
    y = np.array(labels, dtype=np.int64) - 1
    if y.min() < 0 or y.max() >= _CLASSES:
        raise ValueError(f"{path}: labels are {y.min() + 1} to {y.max() + 1}, not 1 to {_CLASSES}")
    return rows.reshape(-1, 3, 32, 32), y


def _value(content: Any, name: str) -> Any:
    """Return an entry, whose name is text or bytes by the Python that wrote it."""
    if not isinstance(content, dict):
        return None
    return content.get(name, content.get(name.encode()))
