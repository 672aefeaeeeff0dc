"""Load a data set by name.

What a set is made of stands in `alkit.data.parts`, whose names can be had here too; the readers are
imported when they are needed.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from alkit.data.parts import Batches, DataSet, Part, stratified_split

__all__ = ["Batches", "DataSet", "Part", "load", "stratified_split"]

# where the function stands that reads a set
_READERS = {
    "digits": "datasets.load_digits",
    "pydocs": "pydocs.load_pydocs",
    "tiny_imagenet": "images.load_tiny_imagenet",
    "cifar10": "images.load_cifar10",
    "cifar100": "images.load_cifar100",
    "mnist": "digit_images.load_mnist",
    "fashion_mnist": "digit_images.load_fashion_mnist",
    "imagenet32": "imagenet32.load_imagenet32",
    "svhn": "digit_images.load_svhn",
    "ag_news": "corpora.load_ag_news",
    "dbpedia": "corpora.load_dbpedia",
    "imdb": "corpora.load_imdb",
    "sst2": "corpora.load_sst2",
    "banking77": "corpora.load_banking77",
    "emotion": "corpora.load_emotion",
    "rotten_tomatoes": "corpora.load_rotten_tomatoes",
    "yelp": "corpora.load_yelp",
}


def load(name: str, *, seed: int = 0, **options: Any) -> DataSet:
    """Load a data set; nothing is fetched, and the split depends on the seed alone.

    Embedded: "digits" (1,797 handwritten digits (1, 8, 8) of scikit-learn; option size) and
    "pydocs" (6,000 sentences of docstrings; options in `alkit.data.pydocs.load_pydocs`).

    Looked for under `ALKIT_DATA` and `data/`, as official archive, part of it or folder:
    "tiny_imagenet", "cifar10", "cifar100" (`alkit.data.images`); "mnist", "fashion_mnist",
    "svhn" (`alkit.data.digit_images`); "imagenet32" (`alkit.data.imagenet32`); "ag_news",
    "dbpedia", "imdb", "sst2", "banking77", "emotion", "rotten_tomatoes", "yelp" (options in
    `alkit.data.corpora`). Their validation part is held out of the official training part; the note
    says how much of the official set was found.

    Raises:
        ValueError: there is no data set of that name, or it is damaged; names file and row.
        FileNotFoundError: the set is not here; says where was looked and how to get it.

    Example:
        >>> load("digits").describe()
        'digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8'
    """
    if name not in _READERS:
        raise ValueError(f"no data set {name!r}; there are {', '.join(sorted(_READERS))}")
    module, _, function = _READERS[name].partition(".")
    return getattr(import_module(f"alkit.data.{module}"), function)(seed=seed, **options)


def load_digits(*, seed: int = 0, size: int = 8) -> DataSet:
    """Load scikit-learn's digits: 1,078 training, 359 validation and 360 test images.

    Pixels are scaled to [0, 1], then standardised with mean and sd of the training part.

    Args:
        size: height and width; the 8 x 8 originals are stretched to it, for networks that shrink
            a picture more than three times.
    """
    table = np.loadtxt(_digits_file(), delimiter=",", dtype=np.float32)  # 64 pixels and a class
    x = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16.0
    if size != x.shape[2]:
        x = interpolate(x, (size, size), mode="bilinear")
    y = torch.from_numpy(table[:, -1]).long()
    rows = stratified_split(y, seed=seed)
    train_x = x[rows[0]]
    x = (x - train_x.mean()) / train_x.std()
    train, validation, test = (Part(x[part], y[part], 10) for part in rows)
    return DataSet("digits", train, validation, test, 10, tuple(map(str, range(10))))


def _digits_file() -> Path:
    """Return where scikit-learn keeps them; importing it would take 1.5 s in every process."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(
            "the digits come with scikit-learn, which is not installed: pip install alkit[vision]"
        )
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
