"""What data sets there are, where they may lie, and where their owners publish them.

Archives are read as they are, so a set lies as its official archive, as a part of it with a longer
name (`ag_news_csv_train9995.tgz`), or as the folder that the archive unpacks to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from alkit.data import paths

EMBEDDED = {
    "digits": "1,797 handwritten digits, 10 classes (scikit-learn)",
    "pydocs": "6,000 sentences of docstrings, 5 classes (alkit)",
}


class Remote(NamedTuple):
    """An official file: its address, its bytes, and its SHA-256 where it is known."""

    url: str
    size: int
    sha256: str = ""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """A set.

    Args:
        archives: patterns of file names, the official ones first.
        whole: how many of the patterns mean the whole set; a match of a later one is a part.
        folders: names of unpacked folders; "." is the folder of the set itself.
        marker: pattern of what a folder must hold to be the set.
        near: further folders to look in, besides the top one and one of the set's name.
        how: how to come by it where no address is known.
    """

    name: str
    what: str
    archives: tuple[str, ...]
    folders: tuple[str, ...]
    marker: str
    near: tuple[str, ...] = ()
    whole: int = 1
    remotes: tuple[Remote, ...] = ()
    how: str = ""
    vectors: bool = False

    @property
    def size(self) -> str:
        """Return what there is to fetch, in MiB."""
        total = sum(remote.size for remote in self.remotes)
        return f"{total / 2**20:.0f} MiB" if total else ""

    @property
    def home(self) -> Path:
        """Return the folder that a fetched set goes to."""
        return paths.glove_dir() if self.vectors else paths.data_dir() / self.name


def _entry(name: str, remotes: Iterable[list[Any]] = (), **values: Any) -> Entry:
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Entry(name, remotes=tuple(Remote(*remote) for remote in remotes), **plain)


def _entries() -> dict[str, Entry]:
    text = Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8")
    return {name: _entry(name, **values) for name, values in yaml.safe_load(text).items()}


ENTRIES = _entries()


def entry(name: str) -> Entry:
    """Return the entry of that name.

    Raises:
        ValueError: there is none, or the set comes with the packages.
    """
    if name in EMBEDDED:
        raise ValueError(f"{name} comes with the packages; there is nothing to fetch")
    if name not in ENTRIES:
        raise ValueError(f"no data set {name!r}; there are {', '.join(sorted(ENTRIES))}")
    return ENTRIES[name]


def find(name: str) -> Path:
    """Return where a set lies: a whole one before a part, `ALKIT_DATA` before `data/`.

    Raises:
        FileNotFoundError: it is nowhere; says where was looked and how to get it.
    """
    wanted, found = entry(name), look(name)[1]
    if found is not None:
        return found
    forms = [*wanted.archives, *(f"{f}/{wanted.marker}" for f in wanted.folders)]
    looked = ", ".join(map(str, _folders(wanted)))
    how = wanted.how or f"`alkit data get {name}` fetches it ({wanted.size})"
    raise FileNotFoundError(f"{name} is not here: looked in {looked} for {', '.join(forms)}; {how}")


def look(name: str) -> tuple[str, Path | None]:
    """Return "here", "part" or "missing", and where the set lies."""
    wanted = entry(name)
    for path in _matches(wanted, wanted.archives[: wanted.whole], wanted.folders):
        return "here", path
    for path in _matches(wanted, wanted.archives[wanted.whole :], ()):
        return "part", path
    return "missing", None


def _folders(wanted: Entry) -> list[Path]:
    """Return the folders to look in, in the order in which they count."""
    shared = paths.shared_data_dir()
    if wanted.vectors:
        return [paths.glove_dir(), shared / "glove", shared]
    bases = dict.fromkeys([shared, paths.data_dir()])
    return [base / near for base in bases for near in ("", wanted.name, *wanted.near)]


def _matches(wanted: Entry, patterns: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[Path]:
    for base in _folders(wanted):
        # the top folder is no set by itself: its train.csv could be anything's
        names = [f for f in folders if f != "." or base.name in (wanted.name, *wanted.near)]
        yield from (base / name for name in names if any((base / name).glob(wanted.marker)))
        found = (path for pattern in patterns for path in sorted(base.glob(pattern)))
        yield from (p for p in found if p.is_file() and not p.name.endswith((".partial", ".part")))
