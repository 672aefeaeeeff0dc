"""Text sets: read their official files, clean the texts, number the words.

Texts of the training part with at most one word are dropped, as in the AL publication; an empty
text of the test part is one unknown word. The vocabulary is that of the training part.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch

from alkit.data import archives, catalog
from alkit.data import text as texts
from alkit.data.parts import DataSet, Part, balanced_rows, hold_out

_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_DBPEDIA = (
    "Company EducationalInstitution Artist Athlete OfficeHolder MeanOfTransportation Building"
    " NaturalPlace Village Animal Plant Album Film WrittenWork"
)
_POLARITY = ("negative", "positive")

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
    note = _found(train, test, (25_000, 25_000))
    if catalog.find("imdb").suffix in (".csv", ".zip"):
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
    if path.suffix == ".csv":
        return _imdb_table(str(path), path.read_bytes())
    if path.suffix == ".zip":
        for name, content in archives.members(path, lambda name: name.endswith(".csv")):
            return _imdb_table(f"{path}[{name}]", content)
        raise ValueError(f"{path}: there is no .csv; it is another set or incomplete")
    return _imdb_folders(path)


def load_sst2(*, seed: int = 0, **options: Any) -> DataSet:
    """Load GLUE's SST-2; its dev part is the test part, for the official test has no labels.

    Args:
        options: of `TextOptions`.
    Raises: what `load_ag_news` raises.
    """
    parts = sst2_sentences()
    note = _found(*parts, (67_349, 872))
    return build("sst2", *parts, _POLARITY, note, TextOptions(**options), seed)


def sst2_sentences() -> tuple[Rows, Rows]:
    """Return SST-2's training and dev part as they are: sentences and labels, 0 negative.

    Raises: what `load_ag_news` raises.
    """
    files = archives.contents(catalog.find("sst2"), "train.tsv", "dev.tsv")
    train, dev = (
        _labelled(_rows(source, content, "sentence label", "\t", csv.QUOTE_NONE), ("0", "1"))
        for source, content in files
    )
    return train, dev


def _load_zhang(
    name: str,
    class_names: tuple[str, ...],
    official: tuple[int, int],
    seed: int,
    fields: str,
    options: dict[str, Any],
) -> DataSet:
    """Load a set in the form of Zhang et al. 2015: class from 1, title, content.

    It has no header as published; a first row whose class is no number, as copies have it, is one.
    """
    if fields not in ("text", "both"):
        raise ValueError(f"fields is 'text' or 'both', not {fields!r}")
    made = TextOptions(**options)
    parts: list[Rows] = []
    for source, content in archives.contents(catalog.find(name), "train.csv", "test.csv"):
        rows: Rows = ([], [])
        for at, (where, row) in enumerate(_rows(source, content)):
            if len(row) != 3:
                raise ValueError(f"{where}: {len(row)} columns, expected class, title and text")
            if at == 0 and not row[0].strip().lstrip("-").isdigit():
                continue
            if not row[0].isdecimal() or not 1 <= int(row[0]) <= len(class_names):
                raise ValueError(f"{where}: class {row[0]!r}, expected 1 to {len(class_names)}")
            rows[0].append(row[2] if fields == "text" else f"{row[1]} {row[2]}")
            rows[1].append(int(row[0]) - 1)
        parts.append(rows)
    train, test = parts
    note = _found(train, test, official)
    return build(name, train, test, class_names, note, made, seed)


def _imdb_table(source: str, content: bytes) -> tuple[Rows, Rows]:
    reviews, labels = _labelled(_rows(source, content, "review sentiment"), _POLARITY)
    half = len(reviews) // 2
    return (reviews[:half], labels[:half]), (reviews[half:], labels[half:])


def _labelled(rows: Iterable[tuple[str, list[str]]], names: Sequence[str]) -> Rows:
    """Return the texts of rows (text, label), and the numbers of the labels among `names`."""
    texts, labels = [], []
    for where, (text, label) in rows:
        if label not in names:
            raise ValueError(f"{where}: label {label!r}, expected {' or '.join(names)}")
        texts.append(text)
        labels.append(names.index(label))
    return texts, labels


def _imdb_folders(path: Path) -> tuple[Rows, Rows]:
    found: dict[str, list[tuple[int, str, str]]] = {"train": [], "test": []}
    labels = {"neg": 0, "pos": 1}
    for name, content in archives.members(path, _is_review):
        half, label, file = PurePosixPath(name).parts[-3:]
        found[half].append((labels[label], file, content.decode("utf-8", "replace")))
    for part, reviews in found.items():
        if not reviews:
            raise ValueError(f"{path}: there are no reviews in {part}/neg and {part}/pos")
        reviews.sort()
    train, test = (([r[2] for r in half], [r[0] for r in half]) for half in found.values())
    return train, test


def _is_review(name: str) -> bool:
    match PurePosixPath(name).parts:
        case (*_, "train" | "test", "neg" | "pos", file):
            return file.endswith(".txt")
    return False


def _rows(
    source: str,
    content: bytes,
    wanted: str = "",
    delimiter: str = ",",
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL,
) -> Iterator[tuple[str, list[str]]]:
    """Yield "file, line n" and the fields of each row of a table; blank lines are passed over.

    pandas would fill short rows up, and reads on to the end of the file behind a lost quote.

    Args:
        wanted: names of the columns to yield; none: all columns of a table without a header.
    Raises:
        ValueError: a row of another width, a quote that is not closed, no such column, no row, no
            UTF-8; names file and line.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source}, line {line}: no UTF-8 ({error.reason}): save it as such"
        ) from error
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True
    )
    first: list[str] = []
    places, number = [], 0
    try:
        for row in filter(None, reader):
            where = f"{source}, line {reader.line_num}"
            first = first or row
            if len(row) != len(first):
                raise ValueError(f"{where}: {len(row)} columns, expected {len(first)}")
            if wanted and row is first:
                if missing := [name for name in wanted.split() if name not in first]:
                    there = ", ".join(first)
                    raise ValueError(f"{where}: no column {missing[0]!r}; there are {there}")
                places = [first.index(name) for name in wanted.split()]
                continue
            number += 1
            yield where, [row[place] for place in places] if wanted else row
    except csv.Error as error:
        raise ValueError(f"{source}, line {reader.line_num}: {error}") from error
    if not number:
        raise ValueError(f"{source}: there is no row in it; fetch it again")


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
    if lost := {*train[1]} - {train[1][row] for row in long}:
        where = class_names[min(lost)]
        raise ValueError(f"{name}: no training text of two words or more in class {where}")
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
