"""How large the house is, against numbers that only go down: a package becomes thin by choosing.

    python -m tests.unit.test_size      prints the table

Each row holds what is allowed now and the number to reach. What is allowed is what has been
reached: a landing that takes lines away lowers its row, nobody raises one.
"""

import ast
import inspect
import json
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import alkit

HOME = Path(__file__).parents[2]
SLACK = 25  # lines that a row may be above what there is, so that not every commit moves it
LIMITS = {  # what is counted: (allowed now, to reach)
    "front": (850, 850),
    "base": (250, 250),
    "data": (900, 900),
    "models": (650, 650),
    "schedule": (1_000, 1_000),
    "engine": (3_100, 3_100),
    "al": (1_900, 1_900),
    "delayed": (1_100, 1_100),
    "split": (1_550, 1_550),
    "elastic": (1_480, 1_480),
    "dtp": (1_135, 1_135),
    "lab": (850, 850),
    "judging": (392, 392),  # 250, and what split leaves of its 1,850
    "alkit": (15_075, 15_000),
    "alkit, code": (9_800, 9_800),
    "alkit, files": (123, 125),
    "notebooks/studies": (4_500, 3_800),
    "tests": (12_500, 12_500),
    "notebooks": (26, 26),
    "arguments of fit": (22, 22),
    "methods": (34, 34),
}


def code_lines(path: Path) -> int:
    """Count lines that hold code: no blank line, comment or docstring."""
    text = path.read_text(encoding="utf-8")
    docs = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                docs |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    quiet = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    held = set[int]()
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in (*quiet, tokenize.ENDMARKER):
                held |= {*range(token.start[0], token.end[0] + 1)}
    return len(held - docs)


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def cell_lines(path: Path) -> int:
    """Count the lines of a notebook's code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return sum(bool(line.strip()) for source in code for line in source.splitlines())


def files(folder: str, *, deep: bool = True) -> list[Path]:
    found = (HOME / folder).rglob("*.py") if deep else (HOME / folder).glob("*.py")
    return sorted(found)


def _sum(count: object, paths: Iterable[Path]) -> int:
    return sum(map(count, paths))  # type: ignore[arg-type]


@cache
def measured() -> dict[str, int]:
    """Return what there is, by the names of LIMITS."""
    rooms = sorted(p.name for p in (HOME / "alkit").iterdir() if list(p.glob("*.py")))
    found = {"front": _sum(lines, files("alkit", deep=False))}
    found |= {room: _sum(lines, files(f"alkit/{room}")) for room in rooms}
    found |= {"alkit": _sum(lines, files("alkit")), "alkit, code": _sum(code_lines, files("alkit"))}
    found |= {"alkit, files": len(files("alkit"))}
    found |= {f"{name}": _sum(lines, files(name)) for name in ("notebooks/studies", "tests")}
    found["notebooks"] = len(list((HOME / "notebooks").glob("*.ipynb")))
    found["arguments of fit"] = len(inspect.signature(alkit.fit).parameters)
    found["methods"] = len(alkit.METHODS)
    return found


@pytest.mark.parametrize("what", measured())
def test_nothing_grows(what):
    assert what in LIMITS, f"{what} has no row: what can't be had within a number is not built"
    allowed, goal = LIMITS[what]
    now = measured()[what]
    assert now <= allowed, f"{what} has {now}, and {allowed} is allowed: take something away"
    slack = SLACK if allowed > 1000 else 0
    assert allowed <= max(now + slack, goal), f"{what} has {now}: lower its row from {allowed}"


def table() -> str:
    """Return the sizes, and code lines of what stands outside the package."""
    rows = [f"{'':28}{'now':>8}{'allowed':>9}{'goal':>8}"]
    for name, value in measured().items():
        allowed, goal = LIMITS.get(name, ("-", "-"))
        rows.append(f"{name:28}{value:8,}{allowed:>9}{goal:>8}")
    rows.append("\ncode lines elsewhere")
    for folder in ("docs", ".site", ".ci"):
        rows.append(f"{folder:28}{_sum(code_lines, files(folder)):8,}")
    for path in sorted((HOME / "notebooks").glob("*.ipynb")):
        rows.append(f"{path.stem:28}{cell_lines(path):8,}")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
