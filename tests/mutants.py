"""Which tests kill random mutants of a room, and which mutants live.

    python -m tests.mutants ROOM [TESTS ...] --count 30 --seed 0     appends to tests/mutants.csv

TESTS are paths, by default tests/unit/ROOM; the room "front" is the files of alkit itself.
A mutant is one change in a function of the room: a comparison turned round, a number moved by
one, a sum made a difference, a statement left out. The room's tests run once and note which
functions they call; those that call the changed one, a minute of them, run up to the first that
fails, in a copy.
"""

import argparse
import ast
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[1]
TABLE = HOME / "tests" / "mutants.csv"
QUICK = ["-m", "not soak and not machines and not browser and not gpu"]
MOST_S, LIMIT_S = 60, 240
PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)]
PAIRS += [(ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)]
SWAPPED: dict[type, type] = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.FloorDiv: ast.Mult}

# as a plugin of pytest: which functions does each test call?
_calls: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    room, seen, start = os.environ["MUTANTS_ROOM"], set[str](), time.perf_counter()

    def look(frame: Any, event: str, argument: object) -> None:
        if event == "call" and room in frame.f_code.co_filename:
            seen.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    # a test that fails by itself kills nothing
    _calls[item.nodeid] = {"seen": sorted(seen), "seconds": time.perf_counter() - start}


def pytest_sessionfinish() -> None:
    if to := os.environ.get("MUTANTS_CALLS"):
        Path(to).write_text(json.dumps(_calls))


def mutants(path: Path) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield (function, node, new text) of what may be changed in a file's functions."""
    ahead: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text()))]
    while ahead:
        name, node = ahead.pop(0)
        if name and (new := _changed(node)) is not None:
            yield name, node, new
        name = node.name if isinstance(node, ast.FunctionDef) else name
        if not isinstance(node, ast.JoinedStr):  # whose parts have no places before Python 3.12
            ahead += [(name, each) for each in ast.iter_child_nodes(node)]


def _changed(node: ast.AST) -> str | None:
    """Return what a node becomes, None where it is left alone."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1
    elif isinstance(node, ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr | ast.AugAssign) and not isinstance(node.value, ast.Constant):
        return "pass"
    else:
        return None
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _put(path: Path, node: Any, new: str) -> str:
    """Write a mutant, and return the text that stood there."""
    rows = path.read_bytes().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    text = b"".join(rows[first : last + 1])
    end = len(text) - len(rows[last]) + node.end_col_offset
    was, rest = text[node.col_offset : end], text[end:]
    rows[first : last + 1] = [text[: node.col_offset] + new.encode() + rest]
    path.write_bytes(b"".join(rows))
    return " ".join(was.decode().split())


def _pytest(copy: Path, *what: str, limit_s: float, **own: str) -> int:
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"} | own
    call = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *what]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(call, cwd=copy, env=env, timeout=limit_s, **quiet).returncode  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return 1


def room_mutants(room: str, tests: list[str], count: int, seed: int) -> list[list[Any]]:
    """Change the room, a mutant at a time, and return a row for each, as the table has them."""
    rng, rows = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        copy, calls = Path(folder) / "alkit", Path(folder) / "calls.json"
        shutil.copytree(HOME, copy, ignore=shutil.ignore_patterns(".venv*", ".git", "runs"))
        home = copy / "alkit" / ("" if room == "front" else room)
        plugin = {"MUTANTS_ROOM": str(home), "MUTANTS_CALLS": str(calls)}
        where = [*(tests or [f"tests/unit/{room}"]), "--maxfail=1000", *QUICK]
        _pytest(copy, "-p", "tests.mutants", *where, limit_s=7200, **plugin)
        seen = json.loads(calls.read_text())
        found = [(path, *each) for path in sorted(home.glob("*.py")) for each in mutants(path)]
        for path, function, node, new in rng.sample(found, min(count, len(found))):
            key, kept = f"{path.name}:{function}", path.read_bytes()
            own = sorted((run["seconds"], test) for test, run in seen.items() if key in run["seen"])
            was, sums = _put(path, node, new), accumulate(seconds for seconds, _ in own)
            chosen = [test for (_, test), s in zip(own, sums, strict=True) if s < MOST_S]
            dies = chosen != [] and _pytest(copy, *chosen, limit_s=LIMIT_S) != 0
            path.write_bytes(kept)
            rows.append([room, path.name, function, getattr(node, "lineno", 0), was, new, dies])
            print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("room")
    parser.add_argument("tests", nargs="*")
    for name, default in {"count": 30, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    rows = room_mutants(**vars(parser.parse_args()))
    with TABLE.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    print(f"{rows[0][0]}: {sum(row[-1] for row in rows)} of {len(rows)} mutants die")


if __name__ == "__main__":
    main()
