"""What readers see is in plain English: words that have plainer ones, turns that read twice."""

import ast
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
TURNS = (  # they send a reader back to the beginning of a sentence
    r"\b(?:of|by|with|from|than|for|to|in|on|is|and) what (?!is the|does|do |did|if|are the)\w+",
    r"\b(?:of|by|with|in|from|on|at|to|for|through|between) (?:which|whose)\b",
    r"\b[Bb]eside\b",
    r"\b(?:is|are|was|were) (?:said|told|named|asked|meant)\b",
    r"\b(?:those that|that which|the one that|that of)\b",
    r"(?<!here )\b(?:is|are|was|were|be) no (?!longer|more|less|better|faster|different)\w+",
)
STAND = {  # most of them in questions; these numbers only go down
    "README.md": 2,
    "RESULTS.md": 1,
    "docs/devices.md": 2,
    "notebooks/01_what_waits.ipynb": 1,
    "notebooks/03_al_layer.ipynb": 2,
    "notebooks/13_freezing.ipynb": 1,
    "notebooks/index.yaml": 1,
}


def prose(path: Path) -> str:
    """Return a page's text, without code, addresses and comments; of a module its docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [
            ast.get_docstring(each) for each in ast.walk(ast.parse(text)) if isinstance(each, kinds)
        ]
        text = "\n".join(filter(None, found))
    if path.suffix == ".ipynb":
        cells = nbformat.v4.reads(text).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"```\w+\n.*?```", "", text, flags=re.S)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|name: \w+", "", text)
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


@pytest.mark.parametrize(
    "path", [*PAGES, *sorted((ROOT / "alkit").rglob("*.py"))], ids=lambda path: path.stem
)
def test_sentences_read_once(path):
    said = prose(path)
    found = [each[0] for pattern in TURNS for each in re.finditer(pattern, said)]
    assert len(found) == STAND.get(str(path.relative_to(ROOT)), 0), found
