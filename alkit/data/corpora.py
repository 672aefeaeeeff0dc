"""Text sets: read their official files, clean the texts, number the words.

Texts of the training part with at most one word are dropped, as in the AL publication; an empty
text of the test part is one unknown word. The vocabulary is that of the training part.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from alkit.data import archives, catalog
from alkit.data import text as texts
from alkit.data.parts import DataSet, Part, balanced_rows, hold_out
from alkit.data.tables import Table, read_csv

__all__ = [
    "TextOptions",
    "build",
    "imdb_reviews",
    "load_ag_news",
    "load_banking77",
    "load_dbpedia",
    "load_emotion",
    "load_imdb",
    "load_rotten_tomatoes",
    "load_sst2",
    "load_yelp",
    "read_csv",
    "sst2_sentences",
]

_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_DBPEDIA = (
    "Company EducationalInstitution Artist Athlete OfficeHolder MeanOfTransportation Building"
    " NaturalPlace Village Animal Plant Album Film WrittenWork"
)
_POLARITY = ("negative", "positive")
_EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
_STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")

Rows = tuple[list[str], list[int]]


@dataclass(frozen=True)
class TextOptions:
    """Say what becomes of the texts.

    Args:
        max_len: the most words kept of a text, from its beginning.
        max_size: the most rows of the vocabulary, padding and unknown included; None: all words.
        stop_words: drop the words of `alkit.data.text.stop_words`, as the AL publication does.
        legacy: clean as published, which glues words together (`alkit.data.text.clean`).
        validation: share of the official training part held out, class by class, by the seed.
        train_size, test_size: take only so many official rows, as many of each class; None: all.
            Which rows of the training part depends on the seed, of the test part on the size alone.
    """

    max_len: int = 128
    max_size: int | None = 30_000
    stop_words: bool = True
    legacy: bool = False
    validation: float = 0.1
    train_size: int | None = None
    test_size: int | None = None

    def clean(self, batch: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        drop = texts.stop_words() if self.stop_words else frozenset()
        return [texts.clean(text, legacy=self.legacy, drop=drop) for text in batch]


def load_ag_news(*, seed: int = 0, fields: str = "both", **options: Any) -> DataSet:
    """Load AG News.

    Args:
        fields: "text" for the description alone, "both" for title and description.
        options: of `TextOptions`.
    Raises:
        FileNotFoundError: the set is not here; says how to get it.
        ValueError: damage, named with file and line, or an option out of range.
    """
    return _load_zhang("ag_news", _AG_NEWS, (120_000, 7_600), seed, fields, options)


def load_dbpedia(*, seed: int = 0, fields: str = "both", **options: Any) -> DataSet:
    """Load DBpedia-14; arguments and errors as `load_ag_news`."""
    names = tuple(_DBPEDIA.split())
    return _load_zhang("dbpedia", names, (560_000, 70_000), seed, fields, options)


def load_imdb(*, seed: int = 0, **options: Any) -> DataSet:
    """Load the 50,000 labelled IMDb reviews (texts of up to 256 words) in their official halves.

    The folders of `aclImdb` say which half a review is of. The table `IMDB Dataset.csv` does not:
    its first half of rows is taken as the training half, its second as the test half, which are
    the official ones only where whoever wrote it kept them apart; the note says if they cannot be.

    Args:
        options: of `TextOptions`.
    Raises: what `load_ag_news` raises.
    """
    train, test = imdb_reviews()
    table = _is_table(catalog.find("imdb"))
    note = _found(train, test, (25_000, 25_000))
    if table:
        note += "; halves by row order"
        if any(2 * sum(labels) != len(labels) for _, labels in (train, test)):
            note += " (not balanced, so hardly the official halves)"
    made = TextOptions(**{"max_len": 256} | options)
    return build("imdb", train, test, _POLARITY, note, made, seed)


def imdb_reviews() -> tuple[Rows, Rows]:
    """Return IMDb's training and test half as they are: reviews and labels, 0 negative.

    Raises: what `load_ag_news` raises.
    """
    path = catalog.find("imdb")
    return _imdb_table(path) if _is_table(path) else _imdb_folders(path)


def load_sst2(*, seed: int = 0, **options: Any) -> DataSet:
    """Load GLUE's SST-2; its dev part is the test part, for the official test has no labels.

    Args:
        options: of `TextOptions`.
    Raises: what `load_ag_news` raises.
    """
    parts = sst2_sentences()
    note = _found(*parts, (67_349, 872))
    made = TextOptions(**options)
    return build("sst2", *parts, _POLARITY, note, made, seed)


def sst2_sentences() -> tuple[Rows, Rows]:
    """Return SST-2's training and dev part as they are: sentences and labels, 0 negative.

    Raises: what `load_ag_news` raises.
    """
    train, dev = (
        _numbered(
            Table(source, content, delimiter="\t", quoting=csv.QUOTE_NONE),
            "sentence",
            "label",
            len(_POLARITY),
        )
        for source, content in _files(catalog.find("sst2"), "train.tsv", "dev.tsv")
    )
    return train, dev


def load_banking77(*, seed: int = 0, **options: Any) -> DataSet:
    """Load Banking77: `train.csv`, `test.csv`, labels as numbers or names; as `load_sst2`."""
    return _load_table("banking77", 77, (10_003, 3_080), seed, options)


def load_emotion(*, seed: int = 0, **options: Any) -> DataSet:
    """Load emotion: `train.csv`, `test.csv`, header text,label; as `load_sst2`."""
    return _load_table("emotion", _EMOTIONS, (16_000, 2_000), seed, options)


def load_rotten_tomatoes(*, seed: int = 0, **options: Any) -> DataSet:
    """Load Rotten Tomatoes: `train.csv`, `test.csv`, header text,label; as `load_sst2`."""
    return _load_table("rotten_tomatoes", _POLARITY, (8_530, 1_066), seed, options)


def load_yelp(*, seed: int = 0, **options: Any) -> DataSet:
    """Load Yelp's full reviews, as published or with header text,label; as `load_sst2`."""
    return _load_table("yelp", _STARS, (650_000, 50_000), seed, options)


def _files(path: Path, *names: str) -> Iterator[tuple[str, bytes]]:
    """Yield each of the named files of an archive or folder, with a name for messages."""
    found: dict[str, tuple[str, bytes]] = {}
    for name, content in archives.members(path, lambda n: PurePosixPath(n).name in names):
        source = str(path / name) if path.is_dir() else f"{path}[{name}]"
        found.setdefault(PurePosixPath(name).name, (source, content))
    for name in names:
        if name not in found:
            raise ValueError(f"{path}: there is no {name}; it is another set or incomplete")
        yield found[name]


def _load_zhang(
    name: str,
    class_names: tuple[str, ...],
    official: tuple[int, int],
    seed: int,
    fields: str,
    options: dict[str, Any],
) -> DataSet:
    """Load a set in the form of Zhang et al. 2015: class from 1, title, content; no header."""
    if fields not in ("text", "both"):
        raise ValueError(f"fields is 'text' or 'both', not {fields!r}")
    made = TextOptions(**options)
    parts: list[Rows] = []
    for source, content in _files(catalog.find(name), "train.csv", "test.csv"):
        rows: Rows = ([], [])
        for where, label, title, body in Table(source, content, header=False, width=3).rows(
            0, 1, 2
        ):
            rows[0].append(body if fields == "text" else f"{title} {body}")
            rows[1].append(_number(where, "class", label, 1, len(class_names)) - 1)
        parts.append(rows)
    train, test = parts
    note = _found(train, test, official)
    return build(name, train, test, class_names, note, made, seed)


def _is_table(path: Path) -> bool:
    return path.suffix in (".csv", ".zip")


def _imdb_table(path: Path) -> tuple[Rows, Rows]:
    if path.suffix == ".csv":
        source, content = str(path), path.read_bytes()
    else:
        tables = archives.members(path, lambda name: name.endswith(".csv"))
        name, content = next(tables, ("", b""))
        if not name:
            raise ValueError(f"{path}: there is no .csv; it is another set or incomplete")
        source = f"{path}[{name}]"
    reviews, labels = [], []
    for where, review, sentiment in Table(source, content).rows("review", "sentiment"):
        if sentiment not in _POLARITY:
            raise ValueError(f"{where}: sentiment {sentiment!r}, expected negative or positive")
        reviews.append(review)
        labels.append(_POLARITY.index(sentiment))
    half = len(reviews) // 2
    return (reviews[:half], labels[:half]), (reviews[half:], labels[half:])


def _imdb_folders(path: Path) -> tuple[Rows, Rows]:
    found: dict[str, list[tuple[int, str, str]]] = {"train": [], "test": []}
    labels = {"neg": 0, "pos": 1}
    for name, content in archives.members(path, lambda n: n.endswith(".txt")):
        match PurePosixPath(name).parts:
            case (*_, "train" | "test" as half, "neg" | "pos" as label, file):
                found[half].append((labels[label], file, content.decode("utf-8", "replace")))
    for part, reviews in found.items():
        if not reviews:
            raise ValueError(f"{path}: there are no reviews in {part}/neg and {part}/pos")
        reviews.sort()
    train, test = (([r[2] for r in half], [r[0] for r in half]) for half in found.values())
    return train, test


def _load_table(
    name: str,
    classes: int | tuple[str, ...],
    official: tuple[int, int],
    seed: int,
    options: dict[str, Any],
) -> DataSet:
    """Load `train.csv` and `test.csv` with a column of texts and one of labels.

    Labels are numbers from 0, or names, which are numbered in their order in the alphabet.
    """
    made = TextOptions(**options)
    train, test = (
        _table_rows(*file) for file in _files(catalog.find(name), "train.csv", "test.csv")
    )
    number = classes if isinstance(classes, int) else len(classes)
    names = classes if isinstance(classes, tuple) else tuple(map(str, range(classes)))
    if not all(label.lstrip("-").isdigit() for _, _, label in train):
        names = tuple(sorted({label for _, _, label in train}))
        places = {label: str(place) for place, label in enumerate(names)}
        for where, _, label in test:
            if label not in places:
                raise ValueError(f"{where}: label {label!r} is in no training row")
        train, test = ([(w, t, places[k]) for w, t, k in part] for part in (train, test))
    parts = _labelled(train, len(names)), _labelled(test, len(names))
    note = _found(*parts, official)
    if len(names) != number:
        note += f", {len(names)} of {number} classes"
    return build(name, *parts, names, note, made, seed)


def _table_rows(source: str, content: bytes) -> list[tuple[str, str, str]]:
    """Return where, text and label of each row, with or without a header."""
    first = content[:200].splitlines()[0].decode("utf-8-sig", "replace") if content else ""
    if "text" in first:
        label = "category" if "category" in first else "label"
        return [(w, t, k) for w, t, k in Table(source, content).rows("text", label)]
    # as Zhang et al. publish Yelp: class from 1, then the text with its line ends escaped
    rows = Table(source, content, header=False, width=2).rows(0, 1)
    found = [(where, text.replace("\\n", " "), number) for where, number, text in rows]
    for where, _, number in found:
        if not number.isdigit():
            raise ValueError(
                f"{where}: class {number!r}: without a header the first column is the class, from"
                " 1, and the second the text; or give the columns the header text,label"
            )
    return [(where, text, str(int(number) - 1)) for where, text, number in found]


def _numbered(table: Table, text: str, label: str, num_classes: int) -> Rows:
    return _labelled([(w, t, k) for w, t, k in table.rows(text, label)], num_classes)


def _labelled(rows: Sequence[tuple[str, str, str]], num_classes: int) -> Rows:
    labels = [_number(where, "label", label, 0, num_classes - 1) for where, _, label in rows]
    return [text for _, text, _ in rows], labels


def _number(where: str, what: str, written: str, low: int, high: int) -> int:
    number = int(written) if written.isdecimal() else None
    if number is None or not low <= number <= high:
        raise ValueError(f"{where}: {what} {written!r}, expected {low} to {high}")
    return number


def _found(train: Rows, test: Rows, official: tuple[int, int]) -> str:
    return (
        f"{len(train[1]):,} of {official[0]:,} official training rows,"
        f" {len(test[1]):,} of {official[1]:,} test rows"
    )


def build(
    name: str,
    train: Rows,
    test: Rows,
    class_names: tuple[str, ...],
    note: str,
    options: TextOptions,
    seed: int,
) -> DataSet:
    """Clean, split, number: make a data set of (texts, class numbers)."""
    train = _sized(train, options.train_size, "train_size", seed)
    test = _sized(test, options.test_size, "test_size", 0)  # runs of several seeds share a test
    cleaned = options.clean(train[0])
    long = [row for row, words in enumerate(cleaned) if len(words) > 1]
    if not long:
        raise ValueError(f"{name}: no training text of two words or more")
    if len(long) < len(cleaned):
        note += f"; {len(cleaned) - len(long):,} of at most one word dropped"
    cleaned = [cleaned[row] for row in long]
    y_N = torch.tensor([train[1][row] for row in long])
    rows = hold_out(y_N, options.validation, seed=seed)
    kept, held = ([cleaned[row] for row in part.tolist()] for part in rows)
    vocabulary = texts.Vocabulary(kept, max_size=options.max_size)

    def part(words: list[list[str]], labels: torch.Tensor) -> Part:
        x_NT = texts.encode(words, vocabulary, options.max_len)
        return Part(x_NT, labels, len(class_names), pad=vocabulary.pad)

    parts = (
        part(kept, y_N[rows[0]]),
        part(held, y_N[rows[1]]),
        part(options.clean(test[0]), torch.tensor(test[1])),
    )
    return DataSet(name, *parts, len(class_names), class_names, vocabulary, note)


def _sized(rows: Rows, size: int | None, option: str, seed: int) -> Rows:
    if size is None:
        return rows
    try:
        chosen = balanced_rows(torch.tensor(rows[1]), size, seed=seed).tolist()
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    return [rows[0][row] for row in chosen], [rows[1][row] for row in chosen]
