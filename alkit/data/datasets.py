"""Load a data set by name.

What a set is made of stands in `alkit.data.parts`, whose names can be had here too; the readers are
imported when they are needed.
"""

from importlib import import_module
from typing import Any

from alkit.data.catalog import fetch as fetch
from alkit.data.parts import DataSet
from alkit.data.parts import Part as Part
from alkit.data.parts import stratified_split as stratified_split

# where the functions load_NAME stand
_READERS = {
    "images": "cifar10 cifar100 digits imagenet32 mnist svhn tiny_imagenet",
    "corpora": "ag_news dbpedia imdb sst2",
    "pydocs": "pydocs",
}
_HOMES = {name: home for home, names in _READERS.items() for name in names.split()}


def load(name: str, *, seed: int = 0, **options: Any) -> DataSet:
    """Load a data set; nothing is fetched, and the split depends on the seed alone.

    Embedded: "digits" (1,797 handwritten digits (1, 8, 8) of scikit-learn; option size) and
    "pydocs" (6,000 sentences of docstrings; options in `alkit.data.pydocs.load_pydocs`).

    Looked for under `ALKIT_DATA` and `data/`, as official archive, part of it or folder:
    "tiny_imagenet", "cifar10", "cifar100", "imagenet32", "mnist", "svhn" (`alkit.data.images`),
    "ag_news", "dbpedia", "imdb", "sst2" (options in `alkit.data.corpora`). Their validation part is
    held out of the official training part; the note says how much of the official set was found.

    Raises:
        ValueError: there is no data set of that name.
        FileNotFoundError: the set is not here; says where was looked and how to get it.

    Example:
        >>> load("digits").describe()
        'digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8'
    """
    if name not in _HOMES:
        raise ValueError(f"no data set {name!r}: give {', '.join(sorted(_HOMES))}")
    module = import_module(f"alkit.data.{_HOMES[name]}")
    return getattr(module, f"load_{name}")(seed=seed, **options)
