"""The sets of the notebooks by name: embedded ones, and official archives, read as they are.

`catalog.yaml` says where each lies and where its owner publishes it. Images stay bytes (N, C, H, W)
that the parts scale as they make batches; texts become rows of word numbers. Texts of a training
part with at most one word are dropped, as in the AL publication.
"""

import gzip
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor
from torch.nn.functional import interpolate, pad
from tqdm.auto import tqdm

from alkit.base import paths
from alkit.data import archives
from alkit.data import text as texts
from alkit.data.parts import DataSet as DataSet
from alkit.data.parts import Part as Part
from alkit.data.parts import balanced_rows
from alkit.data.parts import stratified_split as stratified_split

Arrays = tuple[Any, Any]  # bytes (N, C, H, W) and labels (N,), of numpy or torch
DIGITS = tuple("0123456789")
PACKAGES = ("numpy", "pandas", "sklearn", "scipy", "torch")
POLARITY = ("negative", "positive")
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
KINDS = (
    "Company EducationalInstitution Artist Athlete OfficeHolder MeanOfTransportation Building"
    " NaturalPlace Village Animal Plant Album Film WrittenWork"
)
SCALES = {  # mean and standard deviation of the training images
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),  # as AL published them
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "mnist": ((0.1307,), (0.3081,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
OFFICIAL = {  # training and test samples of the whole set
    "tiny_imagenet": (100_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "mnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "ag_news": (120_000, 7_600),
    "dbpedia": (560_000, 70_000),
    "imdb": (25_000, 25_000),
    "sst2": (67_349, 872),
}


def load(name: str, *, seed: int = 0, **options: Any) -> DataSet:
    """Load a data set; nothing is fetched, and the split depends on the seed alone.

    Embedded: "digits" (1,797 handwritten digits (1, 8, 8) of scikit-learn; `size=` stretches them)
    and "pydocs" (6,000 sentences of docstrings, labelled by package; `max_size=`, `max_len=`).

    Looked for under `ALKIT_DATA` and `data/`, as official archive, part of it or folder:
    "tiny_imagenet" (`size=`, `classes=`), "cifar10", "cifar100", "mnist" (`side=`), "svhn";
    "ag_news", "dbpedia", "imdb", "sst2". A share of each class of the training part is held out
    (`validation=0.1`); the note says how much of the official set was found.

    Args:
        options: of texts: `max_len` (words kept of each), `max_size` (rows of the vocabulary),
            `stop_words` (True drops them, as the AL publication does), `train_size` and `test_size`
            (official rows to take, as many of each class; the seed chooses those of training).
    Raises:
        ValueError: there is no data set of that name.
        FileNotFoundError: the set is not here; says where was looked and how to get it.

    Example:
        >>> load("digits").describe()
        'digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8'
    """
    if name not in READERS:
        raise ValueError(f"no data set {name!r}: give {', '.join(sorted(READERS))}")
    return READERS[name](seed=seed, **options)


@cache
def sets() -> dict[str, dict[str, Any]]:
    """Return what the catalogue says of each set."""
    return yaml.safe_load(Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8"))


def find(name: str) -> Path:
    """Return where a set lies: a whole one before a part, `ALKIT_DATA` before `data/`.

    Raises:
        FileNotFoundError: it is nowhere; says where was looked and how to get it.
    """
    entry, bases = sets()[name], (paths.shared_data_dir(), paths.data_dir())
    inner, outer = entry.get("folders", []), entry.get("archives", [])
    for pattern in (*outer[:1], *inner, *outer[1:]):
        for base in bases:
            for folder in ("", name, *entry.get("near", ())):
                if not folder and pattern in inner and "/" not in pattern:
                    continue  # a train.csv in the top folder could be anything
                for found in sorted((base / folder).glob(pattern)):
                    return found.parent if pattern in inner else found
    where = " and ".join(dict.fromkeys(map(str, bases)))
    raise FileNotFoundError(
        f"{name} is not here: looked in {where}; "
        + entry.get("how", f"alkit.datasets.fetch({name!r}) downloads it")
    )


def fetch(name: str) -> list[Path]:
    """Download the official files of a set to data/NAME; their SHA-256 is compared.

    Raises:
        RuntimeError: another file lies at the address.
    """
    home = paths.root() / "glove" if name == "glove.6B" else paths.data_dir() / name
    home.mkdir(parents=True, exist_ok=True)
    files = []
    for url, sha256 in sets()[name]["remotes"]:
        files.append(home / url.rpartition("/")[2])
        torch.hub.download_url_to_file(url, str(files[-1]), hash_prefix=sha256 or None)
    return files


def _found(name: str, train: Any, test: Any, what: str) -> str:
    whole = OFFICIAL[name]
    return (
        f"{len(train):,} of {whole[0]:,} official training {what},"
        f" {len(test):,} of {whole[1]:,} test {what}"
    )


# ---- images


def _images(
    name: str, arrays: Sequence[Arrays], classes: Sequence[str], seed: int, validation: float
) -> DataSet:
    """Return a set of images of bytes, a share of each class of the training part held out."""
    mean, std = SCALES[name]
    whole, last = (
        Part(torch.as_tensor(x), torch.as_tensor(y), len(classes), mean=mean, std=std)
        for x, y in arrays
    )
    held, kept = stratified_split(whole.y, seed=seed, shares=(validation,))
    parts, note = (whole.take(kept), whole.take(held), last), _found(name, whole, last, "images")
    return DataSet(name, *parts, len(classes), tuple(classes), note=note)


def _digits(*, seed: int, size: int = 8) -> DataSet:
    """Scale pixels by mean and deviation of the training part."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels).float().reshape(-1, 1, 8, 8) / 16.0, torch.tensor(labels)
    if size != x.shape[2]:
        x = interpolate(x, (size, size), mode="bilinear")
    rows = stratified_split(y, seed=seed)
    train_x = x[rows[0]]
    x = (x - train_x.mean()) / train_x.std()
    train, held, test = (Part(x[part], y[part], 10) for part in rows)
    return DataSet("digits", train, held, test, 10, DIGITS)


def _tiny_imagenet(
    *, seed: int, size: int = 32, classes: int | None = None, validation: float = 0.1
) -> DataSet:
    """Take the first classes of `wnids.txt`; the official validation images are the test."""
    path = find("tiny_imagenet")
    lists = archives.contents(path, "wnids.txt", "words.txt", "val_annotations.txt")
    wnids, words, annotations = (content.decode().splitlines() for content in lists)
    if classes is not None and not 1 <= classes <= len(wnids):
        raise ValueError(f"classes is {classes}: give 1 to {len(wnids)}")
    labels = {wnid: label for label, wnid in enumerate(wnids[:classes])}
    of_val = dict(line.split("\t")[:2] for line in annotations)

    def place(name: str) -> tuple[bool, int, str]:
        """Return whether an image is of the test, its label (-1: not wanted) and its file."""
        file = PurePosixPath(name).name
        wnid = of_val.get(file) or file.split("_")[0]
        return file in of_val, labels.get(wnid, -1) if file.endswith(".JPEG") else -1, file

    found = archives.members(path, lambda name: place(name)[1] >= 0)
    rows = sorted((*place(name), content) for name, content in found)
    shown = tqdm(rows, desc="tiny ImageNet", unit="image", leave=False)
    made = [(test, label, _decoded(image, size)) for test, label, _, image in shown]
    arrays = []
    for half in (False, True):
        y, x = zip(*(own[1:] for own in made if own[0] == half), strict=True)
        arrays.append((np.stack(x), np.array(y)))
    named = dict(each.split("\t", 1) for each in words if "\t" in each)
    names = [named.get(wnid, wnid).split(",")[0].strip() for wnid in labels]
    pictures = _images("tiny_imagenet", arrays, names, seed, validation)
    return replace(pictures, note=f"{pictures.note}, {len(names)} of 200 classes")


def _decoded(content: bytes, size: int) -> np.ndarray:
    """Return bytes (3, size, size), as torchvision's Resize of the publication makes them."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def _cifar(name: str, key: str, *, seed: int, validation: float = 0.1) -> DataSet:
    """Read the pickled batches that are there: torchvision's reader refuses parts of a set."""
    batches = re.compile(r"(^|/)(data_batch_\d|test_batch|train|test|(batches\.)?meta)$")
    found = {
        PurePosixPath(each).name: archives.unpickle(content)
        for each, content in archives.members(find(name), lambda each: bool(batches.search(each)))
    }
    meta, halves = found.get("batches.meta") or found["meta"], []
    for begins in (("data_batch", "train"), "test"):
        own = [found[file] for file in sorted(found) if file.startswith(begins)]
        x = np.concatenate([each[b"data"] for each in own]).reshape(-1, 3, 32, 32)
        halves.append((x, np.concatenate([each[f"{key}s".encode()] for each in own])))
    names = [each.decode() for each in meta[f"{key}_names".encode()]]
    return _images(name, halves, names, seed, validation)


def _mnist(*, seed: int, validation: float = 0.1, side: int = 28) -> DataSet:
    """Give `side=32` for networks with five pools: a border of two black pixels."""
    from torchvision.datasets import MNIST

    with TemporaryDirectory() as home:  # its owner's files are packed, torchvision's are not
        (raw := Path(home, "MNIST", "raw")).mkdir(parents=True)
        for path in find("mnist").glob("*-ubyte*"):
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                (raw / path.name.removesuffix(".gz")).write_bytes(file.read(archives.MOST))
        found = [MNIST(home, train=train) for train in (True, False)]
    border = [(side - 28) // 2] * 4
    parts = [(pad(own.data[:, None], border), own.targets) for own in found]
    return _images("mnist", parts, DIGITS, seed, validation)


def _svhn(*, seed: int, validation: float = 0.1) -> DataSet:
    from torchvision.datasets import SVHN

    found = [SVHN(find("svhn"), split=split) for split in ("train", "test")]
    return _images("svhn", [(own.data, own.labels) for own in found], DIGITS, seed, validation)


# ---- texts


def _zhang(name: str, classes: Sequence[str], *, seed: int, **options: Any) -> DataSet:
    """Read the form of Zhang et al. 2015: class from 1, title, text; copies have a header."""
    form: dict[str, Any] = {"names": ["label", "title", "text"], "keep_default_na": False}
    tables = list[pd.DataFrame]()
    for content in archives.contents(find(name), "train.csv", "test.csv"):
        header = not content.lstrip(b'\xef\xbb\xbf"')[:1].isdigit()
        own = pd.read_csv(io.BytesIO(content), skiprows=int(header), encoding="utf-8-sig", **form)
        if own.isna().any(axis=None):  # pandas fills rows up
            raise ValueError(f"a row of {name} has fewer columns than the others")
        text, label = own["title"] + " " + own["text"], own["label"].astype(int) - 1
        tables.append(own.assign(text=text, label=label))
    return _texts(name, classes, seed, *tables, **options)


def _imdb(*, seed: int, **options: Any) -> DataSet:
    """Take the folders of `aclImdb`, or the table "IMDB Dataset.csv".

    The table doesn't say which half a review is of: its first half of rows is taken as the training
    half, which is the official one only where its author kept them apart.
    """
    path, note = find("imdb"), ""
    if ".csv" in path.suffixes:
        table = pd.read_csv(path, keep_default_na=False)
        first, note = table.index < len(table) // 2, "; halves by row order"
    else:
        wanted = re.compile(r"(train|test)/(neg|pos)/[^/]+$")
        found = archives.members(path, lambda name: bool(wanted.search(name)))
        rows = sorted(
            (*PurePosixPath(n).parts[-3:], c.decode("utf-8", "replace")) for n, c in found
        )
        table = pd.DataFrame(rows, columns=["half", "sentiment", "file", "review"])
        first = (table["half"] == "train").to_numpy()
    label = [("neg", "pos").index(str(each)[:3]) for each in table["sentiment"]]
    table = table.assign(text=table["review"], label=label)
    if (table.groupby(first)["label"].mean() != 0.5).any():
        note += " (not balanced, so hardly the official halves)"
    options.setdefault("max_len", 256)
    return _texts("imdb", POLARITY, seed, table[first], table[~first], note=note, **options)


def _sst2(*, seed: int, **options: Any) -> DataSet:
    """Take the dev part as test, because the official test has no labels."""
    return _texts("sst2", POLARITY, seed, *sst2_sentences(), **options)


def sst2_sentences() -> list[pd.DataFrame]:
    """Return SST-2's training and dev part as they are: text, and label (0: negative)."""
    form: dict[str, Any] = {"sep": "\t", "quoting": 3, "keep_default_na": False}
    read = archives.contents(find("sst2"), "train.tsv", "dev.tsv")
    tables = (pd.read_csv(io.BytesIO(each), **form) for each in read)
    return [each.rename(columns={"sentence": "text"}) for each in tables]


def sentences() -> pd.DataFrame:
    """Return pydocs' sentences, 1,200 of each package: text, and label (a number in `PACKAGES`).

    `pydocs.txt.gz` holds them; its head says which sources they are from, and under which licence.
    """
    packed = Path(__file__).with_name("pydocs.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode().split("\n")
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    table = pd.DataFrame(
        ((PACKAGES.index(own), text) for own, text in rows), columns=["label", "text"]
    )
    return table.sort_values("label", kind="stable")


def _pydocs(*, seed: int, max_size: int = 5000, max_len: int = 40) -> DataSet:
    options: dict[str, Any] = {"max_size": max_size, "max_len": max_len, "stop_words": False}
    return _texts("pydocs", PACKAGES, seed, sentences(), **options)


def _texts(
    name: str,
    classes: Sequence[str],
    seed: int,
    train: pd.DataFrame,
    test: pd.DataFrame | None = None,
    *,
    note: str = "",
    max_len: int = 128,
    max_size: int | None = 30_000,
    stop_words: bool = True,
    validation: float = 0.1,
    train_size: int | None = None,
    test_size: int | None = None,
) -> DataSet:
    """Choose rows, clean, split and number; the test rows are the same ones for each seed.

    Args:
        train, test: `text`, and `label` from 0. Without `test`, `train` is split in three.
    """
    note = note if test is None else _found(name, train, test, "rows") + note
    train = _cleaned(train, train_size, seed, stop_words)
    long = train[train["words"].map(len) > 1]
    if len(long) < len(train):
        note += f"; {len(train) - len(long):,} of at most one word dropped"
    if test is None:
        parts = [long.iloc[rows.numpy()] for rows in stratified_split(_labels(long), seed=seed)]
    else:
        rows = stratified_split(_labels(long), seed=seed, shares=(validation,))
        held, kept = (long.iloc[own.numpy()] for own in rows)
        parts = [kept, held, _cleaned(test, test_size, 0, stop_words)]
    vocabulary = texts.Vocabulary(parts[0]["words"], max_size=max_size)
    first, second, third = (
        Part(texts.encode(own["words"], vocabulary, max_len), _labels(own), len(classes))
        for own in parts
    )
    return DataSet(name, first, second, third, len(classes), tuple(classes), vocabulary, note)


def _cleaned(table: pd.DataFrame, size: int | None, seed: int, stop_words: bool) -> pd.DataFrame:
    if size is not None:
        table = table.iloc[balanced_rows(_labels(table), size, seed=seed).numpy()]
    drop = texts.stop_words() if stop_words else frozenset()
    return table.assign(words=[texts.clean(text, drop=drop) for text in table["text"]])


def _labels(table: pd.DataFrame) -> Tensor:
    return torch.tensor(table["label"].to_numpy())


READERS: dict[str, Callable[..., DataSet]] = {
    "digits": _digits,
    "tiny_imagenet": _tiny_imagenet,
    "cifar10": partial(_cifar, "cifar10", "label"),
    "cifar100": partial(_cifar, "cifar100", "fine_label"),
    "mnist": _mnist,
    "svhn": _svhn,
    "ag_news": partial(_zhang, "ag_news", TOPICS),
    "dbpedia": partial(_zhang, "dbpedia", KINDS.split()),
    "imdb": _imdb,
    "sst2": _sst2,
    "pydocs": _pydocs,
}
