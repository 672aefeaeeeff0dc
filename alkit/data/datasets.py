"""The sets of the notebooks by name: embedded ones, and official archives, read as they are.

`catalog.yaml` has the name of each and the address where its owner publishes it. Images stay bytes
(N, C, H, W) that the parts scale as they make batches; texts become rows of word numbers.
"""

import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch.nn.functional import interpolate
from tqdm.auto import tqdm

from alkit.base import paths
from alkit.data import archives
from alkit.data import text as texts
from alkit.data.parts import DataSet, Part, stratified_split

HELD_OUT = (0.1,)  # of each class of the official training part, for validation
DIGITS = tuple("0123456789")
PACKAGES = ("numpy", "pandas", "sklearn", "scipy", "torch")
POLARITY = ("negative", "positive")
SHORT = {"max_size": 5000, "max_len": 40}  # of pydocs
SCALES = {  # mean and standard deviation of the training images
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),  # as AL published them
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "mnist": ((0.1307,), (0.3081,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}


def load(name: str, *, seed: int = 0, **options: Any) -> DataSet:
    """Load a data set; nothing is fetched, and the split depends only on the seed.

    Args:
        name: "digits" of scikit-learn and "pydocs", sentences of docstrings, are embedded; images
            "tiny_imagenet", "cifar10", "cifar100", "mnist", "svhn" and texts "ag_news", "dbpedia",
            "imdb", "sst2" are read from the official archive or a part of it, see `find`.
        options: of texts `max_len` (words kept of each) and `max_size` (rows of the vocabulary);
            `size` of digits and tiny ImageNet.

    Example:
        >>> load("digits").describe()
        'digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8'
    """
    if name not in READERS:
        raise ValueError(f"no data set {name!r}: give {', '.join(sorted(READERS))}")
    return READERS[name](seed=seed, **options)


@cache
def sets() -> dict[str, dict[str, Any]]:
    """Return the entries of the catalogue, by set."""
    return yaml.safe_load(Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8"))


def find(name: str) -> Path:
    """Return the file of a set, under `ALKIT_DATA` or `data/`, two folders deep at most.

    A whole set comes before a part, whose name is longer.
    """
    entry, bases = sets()[name], (paths.shared_data_dir(), paths.root() / "data")
    for pattern in entry["files"]:
        places = [(base, deep + pattern) for base in bases for deep in ("", "*/", "*/*/")]
        if found := [own for base, each in places for own in sorted(base.glob(each))]:
            return min(found, key=lambda own: len(own.name))
    how = entry.get("how", f"alkit.datasets.fetch({name!r}) downloads it")
    raise FileNotFoundError(f"{name} is not here: looked in {bases[0]} and {bases[1]}; {how}")


def fetch(name: str) -> Path:
    """Download the official files of a set to data/NAME; their SHA-256 is compared."""
    home = paths.root() / ("glove" if name == "glove.6B" else f"data/{name}")
    home.mkdir(parents=True, exist_ok=True)
    for url, sha256 in sets()[name]["remotes"]:
        file = str(home / url.rpartition("/")[2])
        torch.hub.download_url_to_file(url, file, hash_prefix=sha256 or None)
    return home


# ---- images


def _images(name: str, halves: Iterable[Any], classes: Sequence[str], seed: int) -> DataSet:
    """Return a set of images of bytes, a share of each class of the training part held out."""
    mean, std = SCALES[name]
    whole, last = (Part(torch.as_tensor(x), y, len(classes), mean=mean, std=std) for x, y in halves)
    held, kept = (whole.take(own) for own in stratified_split(whole.y, seed=seed, shares=HELD_OUT))
    return DataSet(name, kept, held, last, len(classes), tuple(classes))


def _digits(*, seed: int, size: int = 8) -> DataSet:
    """Scale pixels by mean and deviation of the training part."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels).float().reshape(-1, 1, 8, 8) / 16.0, torch.tensor(labels)
    x = x if size == 8 else interpolate(x, (size, size), mode="bilinear")
    rows = stratified_split(y, seed=seed)
    x = (x - x[rows[0]].mean()) / x[rows[0]].std()
    train, held, test = (Part(x[own], y[own], 10) for own in rows)
    return DataSet("digits", train, held, test, 10, DIGITS)


def _tiny_imagenet(*, seed: int, size: int = 32) -> DataSet:
    """Take the classes of `wnids.txt`; the official validation images are the test."""
    from PIL import Image

    files = archives.files(find("tiny_imagenet"), r"^[^/]+/[^/]+\.txt|/(train|val)/")
    lists = ("wnids.txt", "words.txt", "val_annotations.txt")
    wnids, words, annotations = (files[name].decode().splitlines() for name in lists)
    of_val = dict(line.split("\t")[:2] for line in annotations)
    images = [file for file in files if file.endswith(".JPEG")]
    label = {file: wnids.index(of_val.get(file) or file.split("_")[0]) for file in images}
    arrays = []
    for half in (label.keys() - of_val.keys(), label.keys() & of_val.keys()):
        rows = sorted(half, key=lambda file: (label[file], file))
        shown = tqdm(rows, desc="tiny ImageNet", unit="image", leave=False)
        read = (Image.open(io.BytesIO(files[file])).convert("RGB") for file in shown)
        # as torchvision's Resize of the publication makes them
        small = (image.resize((size, size), Image.Resampling.BILINEAR) for image in read)
        x = np.stack([np.asarray(image).transpose(2, 0, 1) for image in small])
        arrays.append((x, [label[file] for file in rows]))
    named = dict(line.split("\t", 1) for line in words)
    return _images("tiny_imagenet", arrays, [named[each].split(",")[0] for each in wnids], seed)


def _cifar(name: str, key: str, *, seed: int) -> DataSet:
    """Read the pickled batches that are there: torchvision's reader refuses parts of a set."""
    files = archives.files(find(name), r"/(data_batch_\d|test_batch|train|test|(batches\.)?meta)$")
    unpickler = partial(archives.Arrays, encoding="bytes")  # of Python 2
    found = {name: unpickler(io.BytesIO(content)).load() for name, content in files.items()}
    halves = []
    for begins in (("data_batch", "train"), "test"):
        own = [found[file] for file in sorted(found) if file.startswith(begins)]
        x = np.concatenate([each[b"data"] for each in own]).reshape(-1, 3, 32, 32)
        halves.append((x, np.concatenate([each[f"{key}s".encode()] for each in own])))
    names = (found.get("batches.meta") or found["meta"])[f"{key}_names".encode()]
    return _images(name, halves, [each.decode() for each in names], seed)


def _mnist(*, seed: int) -> DataSet:
    home, halves = find("mnist").parent, []
    for half in ("train", "t10k"):
        files = [home / f"{half}-{each}-ubyte.gz" for each in ("images-idx3", "labels-idx1")]
        packed = (gzip.GzipFile(fileobj=io.BytesIO(own.read_bytes())) for own in files)
        x, y = (each.read(archives.MOST) for each in packed)
        pixels = torch.tensor(np.frombuffer(x, np.uint8, offset=16)).view(-1, 1, 28, 28)
        labels = torch.tensor(np.frombuffer(y, np.uint8, offset=8))
        halves.append((pixels, labels))
    return _images("mnist", halves, DIGITS, seed)


def _svhn(*, seed: int) -> DataSet:
    from torchvision.datasets import SVHN

    found = [SVHN(find("svhn").parent, split=split) for split in ("train", "test")]
    return _images("svhn", ((own.data, own.labels) for own in found), DIGITS, seed)


# ---- texts


def _zhang(name: str, **options: Any) -> DataSet:
    """Read the form of Zhang et al. 2015: class from 1, title, text."""
    form: dict[str, Any] = {"names": ["label", "title", "text"], "keep_default_na": False}
    files = archives.files(find(name), r"/(train|test)\.csv$|/classes\.txt$")
    tables = (pd.read_csv(io.BytesIO(files[f"{half}.csv"]), **form) for half in ("train", "test"))
    rows = [t.assign(text=t["title"] + " " + t["text"], label=t["label"] - 1) for t in tables]
    return _texts(name, files["classes.txt"].decode().split(), rows, **options)


def _imdb(*, max_len: int = 256, **options: Any) -> DataSet:
    """Take `aclImdb`, or the table "IMDB Dataset.csv", whose first half of rows trains."""
    path = find("imdb")
    if ".csv" in path.suffixes:
        table = pd.read_csv(path, names=["text", "label"], header=0, keep_default_na=False)
        first = table.index < len(table) // 2
    else:
        found = archives.files(path, r"(train|test)/(neg|pos)/[^/]+$", parts=3)
        rows = sorted((*name.split("/"), own.decode()) for name, own in found.items())
        table = pd.DataFrame(rows, columns=["half", "label", "file", "text"])
        first = (table["half"] == "train").to_numpy()
    table["label"] = [("neg", "pos").index(str(each)[:3]) for each in table["label"]]
    return _texts("imdb", POLARITY, [table[first], table[~first]], max_len=max_len, **options)


def sst2_sentences() -> list[pd.DataFrame]:
    """Return the training and dev part of SST-2: the official test has no labels."""
    form: dict[str, Any] = {"sep": "\t", "quoting": 3, "keep_default_na": False}
    files = archives.files(find("sst2"), r"/(train|dev)\.tsv$")
    tables = (pd.read_csv(io.BytesIO(files[f"{half}.tsv"]), **form) for half in ("train", "dev"))
    return [each.rename(columns={"sentence": "text"}) for each in tables]


def sentences() -> pd.DataFrame:
    """Return pydocs: 1,200 sentences of each package, with labels (numbers in `PACKAGES`)."""
    form: dict[str, Any] = {"sep": "\t", "quoting": 3, "names": ["label", "text"]}
    file = Path(__file__).with_name("pydocs.txt.gz")
    table = pd.read_csv(file, skiprows=68, keep_default_na=False, **form)  # sources and licences
    table["label"] = table["label"].map(PACKAGES.index)
    return table.sort_values("label", kind="stable")


def _texts(
    name: str,
    classes: Sequence[str],
    tables: Sequence[pd.DataFrame],
    *,
    seed: int,
    max_len: int = 128,
    max_size: int | None = 30_000,
) -> DataSet:
    """Clean, split and number a training and a test part; a whole is split in three.

    As in the AL publication, training texts of one word go, and stop words if there is a test.
    """
    drop = texts.stop_words() if tables[1:] else frozenset()
    own, *rest = (t.assign(words=[texts.clean(x, drop=drop) for x in t["text"]]) for t in tables)
    own, shares = own[own["words"].map(len) > 1], HELD_OUT if rest else (0.6, 0.2)
    rows = stratified_split(torch.tensor(own["label"].to_numpy()), seed=seed, shares=shares)
    parts = [own.iloc[each.numpy()] for each in rows]
    parts = [parts[1], parts[0], *rest] if rest else parts  # held out comes first
    vocabulary = texts.vocabulary_of(parts[0]["words"], max_size=max_size)
    numbers = [texts.encode(each["words"], vocabulary, max_len) for each in parts]
    labels = [torch.tensor(each["label"].to_numpy()) for each in parts]
    first, second, third = (Part(x, y, len(classes)) for x, y in zip(numbers, labels, strict=True))
    return DataSet(name, first, second, third, len(classes), tuple(classes), vocabulary)


READERS: dict[str, Callable[..., DataSet]] = {
    "digits": _digits,
    "tiny_imagenet": _tiny_imagenet,
    "cifar10": partial(_cifar, "cifar10", "label"),
    "cifar100": partial(_cifar, "cifar100", "fine_label"),
    "mnist": _mnist,
    "svhn": _svhn,
    "ag_news": partial(_zhang, "ag_news"),
    "dbpedia": partial(_zhang, "dbpedia"),
    "imdb": _imdb,
    "sst2": lambda **options: _texts("sst2", POLARITY, sst2_sentences(), **options),
    "pydocs": lambda **options: _texts("pydocs", PACKAGES, [sentences()], **SHORT | options),
}
