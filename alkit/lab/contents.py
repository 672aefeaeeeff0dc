"""The list of notebooks, `notebooks/index.yaml`: README, the site and `alkit list` read it."""

from pathlib import Path
from typing import NamedTuple

import yaml

from alkit.base import paths

SHELVES = {
    "course": "Course: read these in this order",
    "atlas": "Atlas: results",
    "lab": "Lab: repeat or change something",
}
FAMILIES = {
    "all": "All methods",
    "al": "Associated learning",
    "delayed": "Delayed gradients",
    "split": "Split learning",
    "elastic": "Elastic training",
    "dtp": "Target propagation",
}


class Entry(NamedTuple):
    """A notebook in the list: family of `FAMILIES`, shelf of `SHELVES`, minutes to read and run."""

    name: str
    title: str
    sentence: str
    family: str
    shelf: str
    minutes: int

    @property
    def path(self) -> Path:
        """Its file."""
        return paths.root() / "notebooks" / f"{self.name}.ipynb"


def contents() -> list[Entry]:
    """Return all notebooks in the order in which they are read; none where there is no list."""
    file = paths.root() / "notebooks" / "index.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else "[]"
    return [Entry(**each) for each in yaml.safe_load(text)]


def course() -> str:
    """Return the course as README's table."""
    lines = ["| notebook | what you do | minutes |", "| --- | --- | ---: |"]
    for each in (each for each in contents() if each.shelf == "course"):
        link = f"[{each.name[:2]}](notebooks/{each.name}.ipynb)"
        lines.append(f"| {link} | {each.sentence} | {each.minutes} |")
    return "\n".join(lines)
