"""Executed copies of the notebooks, in build/executed, with figures that follow the page's mode."""

import hashlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import papermill

from alkit.lab.contents import Entry

__all__ = [
    "BUILD",
    "EXECUTED",
    "ROOT",
    "SITE",
    "SOURCE",
    "execute",
    "executed",
    "sections",
    "write",
]

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".site"
BUILD = ROOT / "build"
EXECUTED, SOURCE = BUILD / "executed", BUILD / "site" / "source"
KERNEL = "c.InlineBackend.figure_formats = {'svg'}\n"  # which a page can show by night, too


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
    parts = (
        "alkit/**/*",
        "notebooks/studies/**/*.py",
        "notebooks/results/*.csv",
        "environment.yml",
    )
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
        write(BUILD / "ipython" / "profile_default" / "ipython_kernel_config.py", KERNEL)
        os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
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
