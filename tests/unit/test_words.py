"""What readers see is in plain English: a list of words that have plainer ones, and where they may
not stand.

Code, addresses and the names of files and columns are not looked at.
"""

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
UNIT = (
    "batch|class|layer|level|stage|rank|worker|sample|seed|method|block|device|parameter|step|core"
    "|case|variant|row|exit|epoch|second|token|run|module|process|processor|page|code|pair|family"
    "|folder|file|side|size|position|column|group|notebook|line|iteration|setting|name|sentence"
    "|channel|link|stack|thread|character|rows"
)
COUNTED = (
    "images|samples|texts|labels|steps|batches|micro-batches|seconds|milliseconds|nats|numbers"
    "|bytes|KiB|MiB|runs|minutes|min|tasks|points"
)
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
    rf"\b(a|an|one) (?!step costs)\w+ an? ({UNIT})\b": "per",
    rf"(?<!how many )\b({COUNTED}) an? ({UNIT})\b(?! (of|with))": "per",
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


def complaints(text: str) -> list[str]:
    return [
        f"{found[0]!r}: {plainer}"
        for pattern, plainer in PLAINER.items()
        for found in re.finditer(pattern, text, re.I)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_words_are_plain(path):
    assert complaints(prose(path)) == []


@pytest.mark.parametrize(
    "said",
    [
        "six arms",
        "A row a link",
        "it stands in the table",
        "on the clock",
        "is reckoned",
        "nats a character",
    ],
)
def test_a_private_word_is_seen(said):
    assert complaints(said)
