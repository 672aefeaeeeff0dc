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
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
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
from alkit.data.parts import DataSet as DataSet
from alkit.data.parts import Part as Part
from alkit.data.parts import balanced_rows, hold_out
from alkit.data.parts import stratified_split as stratified_split

Arrays = tuple[np.ndarray, np.ndarray]  # bytes (N, C, H, W) and labels (N,)
Rows = tuple[list[str], list[int]]  # texts and labels
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
        Part(torch.from_numpy(x), torch.from_numpy(y), len(classes), mean=mean, std=std)
        for x, y in arrays
    )
    kept, held = hold_out(whole.y, validation, seed=seed)
    parts, note = (whole.take(kept), whole.take(held), last), _found(name, whole, last, "images")
    return DataSet(name, *parts, len(classes), tuple(classes), note=note)


def _digits(*, seed: int, size: int = 8) -> DataSet:
    """Scale pixels by mean and deviation of the training part."""
    spec = find_spec("sklearn")  # importing it would take 1.5 s in every process
    if spec is None or spec.origin is None:
        raise FileNotFoundError("digits come with scikit-learn: pip install alkit[vision]")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)  # 64 pixels and a class
    x = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16.0
    if size != x.shape[2]:
        x = interpolate(x, (size, size), mode="bilinear")
    y = torch.from_numpy(table[:, -1]).long()
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

    def place(name: str) -> tuple[bool, int, str] | None:
        """Return whether an image is of the test, its label and file; None for other files."""
        file = PurePosixPath(name).name
        wnid = of_val.get(file) or file.split("_")[0]
        wanted = file.endswith(".JPEG") and wnid in labels
        return (file in of_val, labels[wnid], file) if wanted else None

    found = archives.members(path, lambda name: place(name) is not None)
    rows = sorted((place(name) or (False, 0, ""), content) for name, content in found)
    shown = tqdm(rows, desc="tiny ImageNet", unit="image", leave=False)
    made = [(test, label, _decoded(image, size)) for (test, label, _), image in shown]
    arrays = []
    for half in (False, True):
        y, x = zip(*(own[1:] for own in made if own[0] == half), strict=True)
        arrays.append((np.stack(x), np.array(y, np.int64)))
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
    halves: dict[bool, list[Arrays]] = {False: [], True: []}
    for file in sorted(each for each in found if "meta" not in each):
        labels = np.array(found[file][f"{key}s".encode()], dtype=np.int64)
        halves[file.startswith("test")].append(
            (found[file][b"data"].reshape(-1, 3, 32, 32), labels)
        )
    meta = found.get("batches.meta") or found["meta"]
    names = [each.decode() for each in meta[f"{key}_names".encode()]]
    train, test = (tuple(map(np.concatenate, zip(*own, strict=True))) for own in halves.values())
    return _images(name, [train, test], names, seed, validation)  # type: ignore[list-item]


def _mnist(*, seed: int, validation: float = 0.1, side: int = 28) -> DataSet:
    """Give `side=32` for networks with five pools: a border of two black pixels."""
    border, parts = (side - 28) // 2, []
    for half in ("train", "t10k"):
        images, labels = _idx(f"{half}-images-idx3-ubyte"), _idx(f"{half}-labels-idx1-ubyte")
        x = np.pad(images, ((0, 0), (border, border), (border, border)))
        parts.append((x[:, None], labels.astype(np.int64)))
    return _images("mnist", parts, DIGITS, seed, validation)


def _idx(name: str) -> np.ndarray:
    """Return the numbers of an IDX file of bytes, packed or not: torchvision's reader unpacks."""
    path = min(find("mnist").glob(f"{name.replace('-idx', '?idx')}*"))  # as copies have it
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(archives.MOST)  # a shape in a header is believed where it fits
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def _svhn(*, seed: int, validation: float = 0.1) -> DataSet:
    from torchvision.datasets import SVHN

    found = [SVHN(find("svhn"), split=split) for split in ("train", "test")]
    parts = [(own.data, own.labels.astype(np.int64)) for own in found]
    return _images("svhn", parts, DIGITS, seed, validation)


# ---- texts


def _zhang(name: str, classes: Sequence[str], *, seed: int, **options: Any) -> DataSet:
    """Read the form of Zhang et al. 2015: class from 1, title, text; copies have a header."""
    form: dict[str, Any] = {"keep_default_na": False, "encoding": "utf-8-sig"}
    parts: list[Rows] = []
    for content in archives.contents(find(name), "train.csv", "test.csv"):
        header = not content.lstrip(b'\xef\xbb\xbf"')[:1].isdigit()
        columns = ["label", "title", "text"]
        own = pd.read_csv(io.BytesIO(content), names=columns, skiprows=int(header), **form)
        if own.isna().any(axis=None):  # pandas fills rows up
            raise ValueError(f"a row of {name} has fewer columns than the others")
        labels = own["label"].astype(int) - 1
        parts.append(((own["title"] + " " + own["text"]).tolist(), labels.tolist()))
    return _texts(name, classes, seed, *parts, **options)


def _imdb(*, seed: int, **options: Any) -> DataSet:
    """Take the folders of `aclImdb`, or the table "IMDB Dataset.csv".

    The table doesn't say which half a review is of: its first half of rows is taken as the training
    half, which is the official one only where its author kept them apart.
    """
    path, note = find("imdb"), ""
    if ".csv" in path.suffixes:
        frame = pd.read_csv(path, keep_default_na=False)
        labels, half = [POLARITY.index(each) for each in frame["sentiment"]], len(frame) // 2
        reviews, note = frame["review"].tolist(), "; halves by row order"
        halves = [(reviews[:half], labels[:half]), (reviews[half:], labels[half:])]
    else:
        found: dict[str, list[tuple[int, str, str]]] = {"train": [], "test": []}
        wanted = ("train/neg/", "train/pos/", "test/neg/", "test/pos/")
        for name, content in archives.members(path, lambda each: any(w in each for w in wanted)):
            of, label, file = PurePosixPath(name).parts[-3:]
            found[of].append((int(label == "pos"), file, content.decode("utf-8", "replace")))
        rows = map(sorted, found.values())
        halves = [([text for *_, text in own], [label for label, *_ in own]) for own in rows]
    if any(2 * sum(labels) != len(labels) for _, labels in halves):
        note += " (not balanced, so hardly the official halves)"
    options.setdefault("max_len", 256)
    return _texts("imdb", POLARITY, seed, *halves, note=note, **options)


def _sst2(*, seed: int, **options: Any) -> DataSet:
    """Take the dev part as test, because the official test has no labels."""
    return _texts("sst2", POLARITY, seed, *sst2_sentences(), **options)


def sst2_sentences() -> tuple[Rows, Rows]:
    """Return SST-2's training and dev part as they are: sentences and labels, 0 negative."""
    read = archives.contents(find("sst2"), "train.tsv", "dev.tsv")
    form: dict[str, Any] = {"sep": "\t", "quoting": 3, "keep_default_na": False}
    frames = [pd.read_csv(io.BytesIO(each), **form) for each in read]
    train, dev = ((own["sentence"].tolist(), own["label"].astype(int).tolist()) for own in frames)
    return train, dev


def sentences() -> Rows:
    """Return pydocs' sentences, 1,200 of each package, and their labels (numbers in `PACKAGES`).

    `pydocs.txt.gz` holds them; its head says which sources they are from, and under which licence.
    """
    packed = Path(__file__).with_name("pydocs.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode().split("\n")
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    rows.sort(key=lambda row: PACKAGES.index(row[0]))  # stable
    return [text for _, text in rows], [PACKAGES.index(package) for package, _ in rows]


def _pydocs(*, seed: int, max_size: int = 5000, max_len: int = 40) -> DataSet:
    found, labels = sentences()
    y_N, words = torch.tensor(labels), [texts.clean(text) for text in found]
    rows = stratified_split(y_N, seed=seed)
    vocabulary = texts.Vocabulary((words[row] for row in rows[0].tolist()), max_size=max_size)
    x_NT = texts.encode(words, vocabulary, max_len)
    train, held, test = (Part(x_NT[own], y_N[own], len(PACKAGES)) for own in rows)
    return DataSet("pydocs", train, held, test, len(PACKAGES), PACKAGES, vocabulary)


def _texts(
    name: str,
    classes: Sequence[str],
    seed: int,
    train: Rows,
    test: Rows,
    *,
    note: str = "",
    max_len: int = 128,
    max_size: int | None = 30_000,
    stop_words: bool = True,
    validation: float = 0.1,
    train_size: int | None = None,
    test_size: int | None = None,
) -> DataSet:
    """Clean, split, number."""
    note = _found(name, train[1], test[1], "rows") + note
    train = _sized(train, train_size, seed)
    test = _sized(test, test_size, 0)  # runs of several seeds share a test
    drop = texts.stop_words() if stop_words else frozenset()
    cleaned, last = ([texts.clean(text, drop=drop) for text in part[0]] for part in (train, test))
    long = [row for row, words in enumerate(cleaned) if len(words) > 1]
    if len(long) < len(cleaned):
        note += f"; {len(cleaned) - len(long):,} of at most one word dropped"
    y_N = torch.tensor(train[1])[long]
    rows = hold_out(y_N, validation, seed=seed)
    kept, held = ([cleaned[long[row]] for row in part.tolist()] for part in rows)
    vocabulary = texts.Vocabulary(kept, max_size=max_size)
    pairs = [(kept, y_N[rows[0]]), (held, y_N[rows[1]]), (last, torch.tensor(test[1]))]
    first, second, third = (
        Part(texts.encode(words, vocabulary, max_len), labels, len(classes))
        for words, labels in pairs
    )
    return DataSet(name, first, second, third, len(classes), tuple(classes), vocabulary, note)


def _sized(rows: Rows, size: int | None, seed: int) -> Rows:
    if size is None:
        return rows
    chosen = balanced_rows(torch.tensor(rows[1]), size, seed=seed).tolist()
    return [rows[0][row] for row in chosen], [rows[1][row] for row in chosen]


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
