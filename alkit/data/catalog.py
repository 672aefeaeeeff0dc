"""What data sets there are, where they may lie, and where their owners publish them.

Archives are read as they are, so a set lies as its official archive, as a part of it with a longer
name (`ag_news_csv_train9995.tgz`), or as the folder that the archive unpacks to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from alkit.data import paths

__all__ = [
    "EMBEDDED",
    "ENTRIES",
    "Entry",
    "Remote",
    "entry",
    "find",
    "how_to_get",
    "look",
    "size_text",
]

EMBEDDED = {
    "digits": "1,797 handwritten digits, 10 classes (scikit-learn)",
    "pydocs": "6,000 sentences of docstrings, 5 classes (installed packages)",
}


@dataclass(frozen=True)
class Remote:
    """Name an official file: its address, size in bytes and published checksum where known.

    A checksum is "md5:..." or "sha256:...", of the whole file.
    """

    url: str
    size: int | None = None
    checksum: str = ""

    @property
    def file(self) -> str:
        """Return the name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """Describe a set.

    Args:
        archives: patterns of file names, the official ones first.
        whole: how many of the patterns mean the whole set; a match of a later one is a part.
        folders: names of unpacked folders; "." is the folder of the set itself.
        marker: what a folder must hold to be the set.
        near: further folders to look in, besides the top one and one of the set's name.
        unpack: whether fetching unpacks it (many small files are slow to read from a tar).
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
    unpack: bool = False
    how: str = ""
    vectors: bool = False

    @property
    def size(self) -> int | None:
        """Return the bytes to fetch, None where they are not known."""
        sizes = [remote.size for remote in self.remotes]
        return sum(sizes) if sizes and None not in sizes else None  # type: ignore[arg-type]

    @property
    def home(self) -> Path:
        """Return the folder that a fetched set goes to."""
        return paths.glove_dir() if self.vectors else paths.data_dir() / self.name


def _read() -> dict[str, Entry]:
    text = Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8")
    return {name: _entry(name, **values) for name, values in yaml.safe_load(text).items()}


def _entry(name: str, remotes: Iterable[list[Any]] = (), **values: Any) -> Entry:
    plain: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in values.items()
    }
    return Entry(name, remotes=tuple(Remote(*remote) for remote in remotes), **plain)


ENTRIES = _read()


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
    found = look(name)[1]
    if found is not None:
        return found
    wanted = entry(name)
    forms = [*wanted.archives, *(f"{f}/{wanted.marker}" for f in wanted.folders)]
    looked = ", ".join(str(folder) for folder in _folders(wanted))
    raise FileNotFoundError(
        f"{name} is not here: looked in {looked} for {', '.join(forms)}; {how_to_get(name)}"
    )


def look(name: str) -> tuple[str, Path | None]:
    """Return "here", "part" or "missing", and where the set lies."""
    wanted = entry(name)
    for path in _matches(wanted, wanted.archives[: wanted.whole], wanted.folders):
        return "here", path
    for path in _matches(wanted, wanted.archives[wanted.whole :], ()):
        return "part", path
    return "missing", None


def how_to_get(name: str) -> str:
    """Say what to do to have the set."""
    wanted = entry(name)
    if not wanted.remotes:
        return wanted.how
    size = f" ({size_text(wanted.size)})" if wanted.size else ""
    return f"`alkit data get {name}` fetches it{size}"


def size_text(size: int | None) -> str:
    """Return a number of bytes in MiB, nothing for None."""
    return "" if size is None else f"{size / 2**20:.0f} MiB"


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
        yield from (base / name for name in names if (base / name / wanted.marker).exists())
        for pattern in patterns:
            yield from (
                path
                for path in sorted(base.glob(pattern))
                if path.is_file() and not path.name.endswith(".partial")
            )
