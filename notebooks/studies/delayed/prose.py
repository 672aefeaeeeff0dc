"""Running text as documents of sentences: WikiText-103, or docstrings."""

import re
from collections.abc import Iterator

from alkit.data import archives, datasets

Documents = list[list[str]]  # sentences by document

TITLE = re.compile(r"^ = [^=].* = $")
HEADING = re.compile(r"^ =.*= $")
END = re.compile(r"(?<=[.?!]) (?=[^a-z])")  # of a sentence, in text whose marks stand alone
FILES = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")


def load_prose(name: str, part: str = "valid") -> Documents:
    """Return documents by name: "wikitext" or "pydocs".

    Args:
        part: of WikiText, "train", "valid" or "test"; of docstrings, "test" is the last tenth of
            the documents and everything else the rest.
    """
    if part not in ("train", "valid", "test"):
        raise ValueError(f"part is {part!r}: give train, valid or test")
    if name == "wikitext":
        return wikitext(part)
    documents = _pydocs()
    cut = len(documents) - max(1, len(documents) // 10)
    return documents[cut:] if part == "test" else documents[:cut]


def wikitext(part: str = "valid") -> Documents:
    """Return the articles of a part of WikiText-103, cut into sentences; headings are left out."""
    name = f"wiki.{part}.tokens"
    return list(_articles(archives.files(datasets.find("wikitext"), name)[name].decode()))


def _articles(text: str) -> Iterator[list[str]]:
    sentences: list[str] = []
    for line in text.splitlines():
        if TITLE.match(line) and sentences:
            yield sentences
            sentences = []
        if line.strip() and not HEADING.match(line):
            sentences += END.split(line.replace("@-@", "-").replace("@,@", ",").strip())
    if sentences:
        yield sentences


def _pydocs() -> Documents:
    """Return docstrings by package, in pieces of twenty sentences."""
    documents: Documents = []
    for _, own in datasets.sentences().groupby("label"):
        documents += [own["text"].iloc[at : at + 20].tolist() for at in range(0, len(own), 20)]
    return documents
