"""Which dashboards there are, and which notebooks show one: read from their sources."""

import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]


def classes() -> list[str]:
    """Return the names of all dashboards."""
    files = [*ROOT.glob("alkit/lab/*.py"), *ROOT.glob("notebooks/studies/**/*.py")]
    texts = [file.read_text(encoding="utf-8") for file in sorted(files)]
    return re.findall(r"^class (\w+)\(Dashboard\)", "\n".join(texts), re.MULTILINE)


def shown() -> dict[str, str]:
    """Return by notebook the dashboard that it makes, as its variable."""
    makes = re.compile(rf"^(\w+) = (?:\w+\.)?(?:{'|'.join(classes())})\(", re.MULTILINE)
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if made := makes.search("\n".join(sources(path))):
            found[path.stem] = made[1]
    return found


def sources(path: Path) -> list[str]:
    """Return the code cells of a notebook."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]
