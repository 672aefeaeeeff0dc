"""A user's own texts and images as data sets: a table of texts, a folder of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from alkit.data.archives import files as below
from alkit.data.archives import plausible
from alkit.data.corpora import TextOptions, build
from alkit.data.decode import decode
from alkit.data.labels import in_order
from alkit.data.parts import DataSet, Part, hold_out

SUFFIXES = tuple(".bmp .gif .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())
PARTS = {  # folders, in upper or lower case
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}


def from_frame(
    frame: pd.DataFrame,
    *,
    text: str = "text",
    label: str = "label",
    test: pd.DataFrame | None = None,
    test_share: float = 0.1,
    seed: int = 0,
    **options: Any,
) -> DataSet:
    """Make a data set of a table: a text and its label in each row.

    Args:
        frame: training and validation rows, which are told apart by the seed.
        text, label: names of the columns; labels of any kind, classes in sorted order, numbers as
            numbers.
        test: the test rows; None: a share of `frame` is held out for it.
        options: of `alkit.data.corpora.TextOptions`: max_len, max_size, validation, ...; stop words
            stay unless stop_words=True, for "not" is one of them.
    Raises:
        ValueError: a column that is not there, a row without text or label, or whose text is none,
            fewer than two classes, or a label of the test rows that no training row has.
    """
    for each in (frame, test):
        if each is not None:
            _check_columns(each, text, label)
    names = in_order(frame[label].tolist())
    if len(names) < 2:
        raise ValueError(f"{label} has one value, {names[0]!r}: give rows of two classes or more")
    if test is None:
        number = torch.tensor([names.index(each) for each in frame[label]])
        kept, held = hold_out(number, test_share, seed=seed)
        frame, test = frame.iloc[kept.tolist()], frame.iloc[held.tolist()]
    elif unknown := set(test[label]) - set(names):
        raise ValueError(f"labels of test that train lacks: {in_order(unknown)}")

    def rows(part: pd.DataFrame) -> tuple[list[str], list[int]]:
        return part[text].tolist(), [names.index(each) for each in part[label]]

    shown = tuple(map(str, names))
    made = TextOptions(**{"stop_words": False} | options)
    return build("a table of texts", rows(frame), rows(test), shown, "", made, seed)


def _check_columns(frame: pd.DataFrame, text: str, label: str) -> None:
    missing = [name for name in (text, label) if name not in frame]
    if missing:
        raise ValueError(
            f"the table has no column {' or '.join(map(repr, missing))}: it has"
            f" {', '.join(map(repr, frame.columns))}; say which with text= and label="
        )
    empty = frame[[text, label]].isna().any(axis=1).to_numpy()
    if empty.any():
        raise ValueError(f"row {int(np.argmax(empty))} has no {text} or no {label}: drop such rows")
    other = [at for at, each in enumerate(frame[text]) if not isinstance(each, str)]
    if other:
        each = frame[text].iloc[other[0]]
        raise ValueError(f"row {other[0]} has {each!r} in {text}, which is no text: give str(...)")


def from_folder(
    folder: str | Path,
    *,
    size: int = 32,
    validation: float = 0.1,
    test_share: float = 0.1,
    seed: int = 0,
) -> DataSet:
    """Make a data set of a folder of images, a folder a class.

        folder/CLASS/*.png                            parts are told apart by the seed
        folder/train/CLASS/*.png, .../test/CLASS/...  as they lie; validation/ (or val/) too

    Hidden files and folders, and those of systems (__MACOSX), are passed over; links are followed.

    Args:
        size: side in pixels that all images get.
        validation, test_share: of each class, held out where there is no such folder.
    Raises:
        ValueError: fewer than two classes, a class without images, a file that is none, or other
            classes in one part than in another.
    """
    home = Path(folder)
    # a folder that holds no folders is a class, whatever its name
    inner = {each.name.lower(): each for each in _folders(home) if _folders(each)}
    parts = {part: inner[name] for part, tried in PARTS.items() for name in tried if name in inner}
    train = parts.pop("train", home)
    if parts and train == home:
        there = ", ".join(each.name for each in parts.values())
        raise ValueError(f"{home} has {there} and no folder train: name the training part so")
    names = in_order(each.name for each in _folders(train))
    if len(names) < 2:
        raise ValueError(f"{train} has {len(names)} folders: wanted one a class, two or more")
    whole, found = _read(train, names, size), dict[str, Part]()
    for part, own in parts.items():
        if odd := {each.name for each in _folders(own)} ^ set(names):
            raise ValueError(f"{own} and {train} have not the same classes: {in_order(odd)[:5]}")
        found[part] = _read(own, names, size, like=whole)
    for part, share in (("test", test_share), ("validation", validation)):
        if part not in found:
            kept, held = hold_out(whole.y, share, seed=seed)
            whole, found[part] = whole.take(kept), whole.take(held)
    return DataSet(home.name, whole, found["validation"], found["test"], len(names), tuple(names))


def _read(folder: Path, names: Sequence[str], size: int, like: Part | None = None) -> Part:
    """Return a folder's images; scaled by the mean and spread of `like`, or their own."""
    images, labels = [], []
    for number, name in enumerate(names):
        files = [each for each in below(folder / name) if each.suffix.lower() in SUFFIXES]
        if not files:
            raise ValueError(f"{folder / name} has no images ({', '.join(SUFFIXES)})")
        images += [decode(path.name, path.read_bytes(), folder, size) for path in files]
        labels += [number] * len(files)
    x = torch.from_numpy(np.stack(images))
    mean, std = (like.mean, like.std) if like is not None else _scale(x)
    return Part(x, torch.tensor(labels), len(names), mean=mean, std=std)


def _folders(home: Path) -> list[Path]:
    return sorted(each for each in home.iterdir() if each.is_dir() and plausible(each.name))


def _scale(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each colour, 0 to 1."""
    rows = x.transpose(0, 1).flatten(1).double().div(255)
    return tuple(rows.mean(1).tolist()), tuple(rows.std(1).clamp_min(1e-3).tolist())
