"""The notebooks in README's order, and their executed copies in build/executed."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import papermill

__all__ = [
    "BUILD",
    "EXECUTED",
    "ROOT",
    "SITE",
    "SOURCE",
    "Entry",
    "contents",
    "execute",
    "executed",
    "sections",
    "write",
]

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".site"
BUILD = ROOT / "build"
EXECUTED, SOURCE = BUILD / "executed", BUILD / "site" / "source"
ROW = re.compile(r"^\| (\[.+?) \| (.+) \| (.+?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A notebook in the table of contents."""

    name: str
    title: str
    shows: str
    takes: str

    @property
    def family(self) -> str:
        """Its decade."""
        return self.name[0]

    @property
    def path(self) -> Path:
        """Its file."""
        return ROOT / "notebooks" / f"{self.name}.ipynb"


def contents() -> list[Entry]:
    """Return the notebooks in README's order; a row may name several."""
    found = []
    page = sections((ROOT / "README.md").read_text(encoding="utf-8"))["Notebooks"]
    for names, shows, takes in ROW.findall(page):
        for name in re.findall(r"\(notebooks/(\w+)\.ipynb\)", names):
            book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
            title = book.cells[0].source.splitlines()[0].removeprefix("# ")
            found.append(Entry(name, title, shows, takes))
    return found


def sections(text: str) -> dict[str, str]:
    """Cut a page at its `## ` headings; what stands before the first has the key ""."""
    found, title, fenced = {"": ""}, "", False
    for line in text.splitlines(keepends=True):
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("## ") and not fenced:
            title = line[3:].strip()
            found[title] = ""
        else:
            found[title] += line
    return found


@cache
def state() -> str:
    """Return a hash of all that outputs depend on beside the notebook itself."""
    parts = ("alkit/**/*", "notebooks/studies/*.py", "notebooks/results/*.json", "environment.yml")
    files = sorted(p for part in parts for p in ROOT.glob(part) if p.suffix not in (".pyc", ""))
    return _digest(path.read_bytes() for path in files)


def executed(entry: Entry) -> Path:
    """Return where its executed copy lies, or would lie."""
    key = _digest([entry.path.read_bytes(), state().encode()])
    return EXECUTED / f"{entry.name}.{key[:16]}.ipynb"


def execute(entry: Entry) -> str:
    """Execute a notebook at smoke, if that was not done before; return its name."""
    made = executed(entry)
    if not made.exists():
        for old in EXECUTED.glob(f"{entry.name}.*"):
            old.unlink()
        part = made.with_suffix(".partial.ipynb")
        papermill.execute_notebook(
            entry.path, part, cwd=entry.path.parent, progress_bar=False, execution_timeout=600
        )
        part.replace(made)
    return entry.name


def write(path: Path, text: str) -> None:
    """Write a page; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.hexdigest()
