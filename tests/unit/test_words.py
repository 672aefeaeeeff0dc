"""What readers see is in plain English: words that have plainer ones; code is not looked at."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *(ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "situations.md"),
    ROOT / "notebooks" / "index.yaml",
]
PLAINER = {
    r"\barms?\b": "variant",
    r"\brungs?\b": "step",
    r"\bladders?\b": "say which variants",
    r"\bon the (virtual )?clock\b|\bthe clock\b": "simulated, the simulator",
    r"\breckon\w*": "calculate",
    r"\bdear(er|est)?\b": "costly",
    r"\bat hand\b": "available",
    r"\btells\b|\btold\b": "says, shows",
    r"\bstands? (in|on|for|under|beside|above|elsewhere)\b": "is",
    r"\bseeds? (that|which) (doesn't|does not|don't) count|, which doesn't count\b": "tuning seed",
    r"\blooked at once\b": "evaluated once",
    r"\bsceptic names\b": "would ask for",
}


def prose(path: Path) -> str:
    """Return a page's text, without code, addresses and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.v4.reads(text).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"```\w+\n.*?```", "", text, flags=re.S)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|name: \w+", "", text)
    # columns of tables hold names of variants
    return "\n".join(line for line in text.splitlines() if not line.startswith("| H"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_words_are_plain(path):
    text = prose(path)
    found = {
        each[0]: plainer
        for pattern, plainer in PLAINER.items()
        for each in re.finditer(pattern, text, re.I)
    }
    assert found == {}
