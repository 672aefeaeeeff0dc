"""Text sets: read their official files by pandas, clean the texts, number the words.

Texts of the training part with at most one word are dropped, as in the AL publication; an empty
text of the test part is one unknown word. The vocabulary is that of the training part.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import torch

from alkit.data import archives, catalog
from alkit.data import text as texts
from alkit.data.labels import in_order
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
        validation: share of the official training part held out, class by class, by the seed.
        train_size, test_size: take only so many official rows, as many of each class; None: all.
            Which rows of the training part depends on the seed, of the test part on the size alone.
    """

    max_len: int = 128
    max_size: int | None = 30_000
    stop_words: bool = True
    validation: float = 0.1
    train_size: int | None = None
    test_size: int | None = None

    def clean(self, batch: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        drop = texts.stop_words() if self.stop_words else frozenset()
        return [texts.clean(text, drop=drop) for text in batch]


def load_ag_news(*, seed: int = 0, fields: str = "both", **options: Any) -> DataSet:
    """Load AG News.

    Args:
        fields: "text" for the description alone, "both" for title and description.
        options: of `TextOptions`.
    """
    return _load_zhang("ag_news", _AG_NEWS, (120_000, 7_600), seed, fields, options)


def load_dbpedia(*, seed: int = 0, fields: str = "both", **options: Any) -> DataSet:
    """Load DBpedia-14; arguments as `load_ag_news`."""
    names = tuple(_DBPEDIA.split())
    return _load_zhang("dbpedia", names, (560_000, 70_000), seed, fields, options)


def load_imdb(*, seed: int = 0, **options: Any) -> DataSet:
    """Load the 50,000 labelled IMDb reviews (texts of up to 256 words) in their official halves.

    The folders of `aclImdb` say which half a review is of. The table `IMDB Dataset.csv` does not:
    its first half of rows is taken as the training half, its second as the test half, which are
    the official ones only where its author kept them apart; the note says if they cannot be.

    Args:
        options: of `TextOptions`.
    """
    path = catalog.find("imdb")
    table = ".csv" in path.suffixes
    halves = _imdb_table(pd.read_csv(path, keep_default_na=False)) if table else _imdb_files()
    note = _found(*halves, (25_000, 25_000)) + ("; halves by row order" if table else "")
    if any(2 * sum(labels) != len(labels) for _, labels in halves):
        note += " (not balanced, so hardly the official halves)"
    made = TextOptions(**{"max_len": 256} | options)
    return build("imdb", *halves, _POLARITY, note, made, seed)


def _imdb_table(frame: pd.DataFrame) -> tuple[Rows, Rows]:
    labels = [_POLARITY.index(each) for each in frame["sentiment"]]
    reviews, half = frame["review"].tolist(), len(frame) // 2
    return (reviews[:half], labels[:half]), (reviews[half:], labels[half:])


def _imdb_files() -> tuple[Rows, Rows]:
    found: dict[str, list[tuple[int, str, str]]] = {"train": [], "test": []}

    def is_review(name: str) -> bool:
        *_, half, label, file = ("", "", *PurePosixPath(name).parts)
        return half in found and label in ("neg", "pos") and file.endswith(".txt")

    for name, content in archives.members(catalog.find("imdb"), is_review):
        half, label, file = PurePosixPath(name).parts[-3:]
        found[half].append((int(label == "pos"), file, content.decode("utf-8", "replace")))
    train, test = (
        ([text for *_, text in half], [label for label, *_ in half])
        for half in map(sorted, found.values())
    )
    return train, test


def load_sst2(*, seed: int = 0, **options: Any) -> DataSet:
    """Load GLUE's SST-2; its dev part is the test part, because the official test has no labels.

    Args:
        options: of `TextOptions`.
    """
    parts = sst2_sentences()
    note = _found(*parts, (67_349, 872))
    return build("sst2", *parts, _POLARITY, note, TextOptions(**options), seed)


def sst2_sentences() -> tuple[Rows, Rows]:
    """Return SST-2's training and dev part as they are: sentences and labels, 0 negative."""
    read = archives.contents(catalog.find("sst2"), "train.tsv", "dev.tsv")
    frames = [_table(each, sep="\t", quoting=3) for each in read]
    train, dev = ((own["sentence"].tolist(), own["label"].astype(int).tolist()) for own in frames)
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

    It has no header as published; copies have one.
    """
    if fields not in ("text", "both"):
        raise ValueError(f"fields is {fields!r}: give 'text' or 'both'")
    parts: list[Rows] = []
    for content in archives.contents(catalog.find(name), "train.csv", "test.csv"):
        header = not content.lstrip(b'\xef\xbb\xbf"')[:1].isdigit()
        own = _table(content, names=["label", "title", "text"], skiprows=int(header))
        words = own["text"] if fields == "text" else own["title"] + " " + own["text"]
        parts.append((words.tolist(), (own["label"].astype(int) - 1).tolist()))
    train, test = parts
    note = _found(train, test, official)
    return build(name, train, test, class_names, note, TextOptions(**options), seed)


def _table(content: bytes, **form: Any) -> pd.DataFrame:
    """Read a table; pandas fills rows up that are too short, which are refused.

    Raises:
        ValueError: names the row.
    """
    frame = pd.read_csv(io.BytesIO(content), keep_default_na=False, encoding="utf-8-sig", **form)
    short = frame.isna().any(axis=1)
    if short.any():
        raise ValueError(f"row {int(short.idxmax())} of a table has fewer columns than the others")
    return frame


def _found(train: Rows, test: Rows, official: tuple[int, int]) -> str:
    return (
        f"{len(train[1]):,} of {official[0]:,} official training rows,"
        f" {len(test[1]):,} of {official[1]:,} test rows"
    )


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
    """Make a data set of a table of your own: a text and its label in each row.

    Args:
        frame: training and validation rows, which the seed tells apart.
        text, label: names of the columns; classes are in sorted order.
        test: the test rows; None: a share of `frame` is held out for it.
        options: of `TextOptions`; stop words stay unless stop_words=True, since "not" is one.
    Raises:
        ValueError: a row without text or label, or a label that no training row has.
    """
    for each in (frame, test):
        if each is not None and (empty := each[[text, label]].isna().any(axis=1)).any():
            raise ValueError(f"row {empty.argmax()} has no {text} or no {label}: drop such rows")
    names = in_order(frame[label].tolist())
    number = torch.tensor([names.index(each) for each in frame[label]])
    if test is None:
        kept, held = hold_out(number, test_share, seed=seed)
        frame, test = frame.iloc[kept.tolist()], frame.iloc[held.tolist()]

    def rows(part: pd.DataFrame) -> Rows:
        return part[text].tolist(), [names.index(each) for each in part[label]]

    made, shown = TextOptions(**{"stop_words": False} | options), tuple(map(str, names))
    return build("a table of texts", rows(frame), rows(test), shown, "", made, seed)


def build(
    name: str,
    train: Rows,
    test: Rows,
    class_names: tuple[str, ...],
    note: str,
    options: TextOptions,
    seed: int,
) -> DataSet:
    """Clean, split, number: make a data set of (texts, class numbers).

    Raises:
        ValueError: a class without a text of two words or more, or more rows asked than there are.
    """
    train = _sized(train, options.train_size, seed)
    test = _sized(test, options.test_size, 0)  # runs of several seeds share a test
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


def _sized(rows: Rows, size: int | None, seed: int) -> Rows:
    if size is None:
        return rows
    chosen = balanced_rows(torch.tensor(rows[1]), size, seed=seed).tolist()
    return [rows[0][row] for row in chosen], [rows[1][row] for row in chosen]
