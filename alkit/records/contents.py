"""The list of notebooks, `notebooks/index.yaml`: README, the site and `alkit list` read it."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from alkit.data.paths import root

__all__ = ["FAMILIES", "SHELVES", "Entry", "contents", "course", "neighbours"]

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


@dataclass(frozen=True)
class Entry:
    """A notebook in the list.

    Attributes:
        name: of its file, without the ending.
        title: its heading, without the number.
        sentence: what a reader can do or see there.
        family: of `FAMILIES`.
        shelf: of `SHELVES`.
        minutes: to read it and run it with its defaults.
    """

    name: str
    title: str
    sentence: str
    family: str
    shelf: str
    minutes: int

    @property
    def path(self) -> Path:
        """Its file."""
        return root() / "notebooks" / f"{self.name}.ipynb"


def contents() -> list[Entry]:
    """Return all notebooks in the order in which they are read."""
    file = root() / "notebooks" / "index.yaml"
    return [Entry(**each) for each in yaml.safe_load(file.read_text(encoding="utf-8"))]


def course() -> str:
    """Return the course as README's table."""
    lines = ["| notebook | what you do | minutes |", "| --- | --- | ---: |"]
    for each in (each for each in contents() if each.shelf == "course"):
        link = f"[{each.name[:2]}](notebooks/{each.name}.ipynb)"
        lines.append(f"| {link} | {each.sentence} | {each.minutes} |")
    return "\n".join(lines)


def neighbours(name: str) -> dict[str, str]:
    """Return the names of the notebooks before and after one: "previous" and "next"."""
    names = [each.name for each in contents()]
    at = names.index(name)
    found = {"previous": names[at - 1]} if at else {}
    return found | ({"next": names[at + 1]} if at + 1 < len(names) else {})
