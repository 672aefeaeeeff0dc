"""Which tests kill random mutants of a room, and which mutants live.

    python -m tests.mutants ROOM --count 30 --seed 0      appends to tests/mutants.csv

A mutant is one change in a function of alkit/ROOM: a comparison turned round, a number moved by
one, a sum made a difference, a condition negated, a statement left out. First the room's tests run
once, and every test notes which functions it calls; then only tests that call the changed function
run, the quickest first, up to the first that fails. The work is done in a copy, with its own bytes.
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
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
TABLE = HOME / "tests" / "mutants.csv"
COLUMNS = ["room", "file", "function", "line", "was", "became", "killed_by"]
MOST_TESTS, LIMIT_S = 60, 300
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
COMPARED |= {ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot}
COMPARED |= {ast.IsNot: ast.Is}
REACHED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}
REACHED |= {ast.Div: ast.Mult, ast.BitOr: ast.BitAnd}

# ---- as a plugin of pytest: which functions does each test call?
_calls: dict[str, dict[str, Any]] = {}


def pytest_runtest_call(item: Any) -> None:
    room, seen = os.environ["MUTANTS_ROOM"], set[str]()

    def look(frame: Any, event: str, argument: object) -> None:
        if event == "call" and room in frame.f_code.co_filename:
            seen.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    _calls[item.nodeid] = {"seen": seen, "start": time.perf_counter()}
    threading.setprofile(look)
    sys.setprofile(look)


def pytest_runtest_teardown(item: Any) -> None:
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    if found := _calls.get(item.nodeid):
        found["seconds"] = time.perf_counter() - found.pop("start")


def pytest_sessionfinish() -> None:
    kept = {test: {**own, "seen": sorted(own["seen"])} for test, own in _calls.items()}
    if to := os.environ.get("MUTANTS_CALLS"):
        Path(to).write_text(json.dumps(kept))


# ---- mutants
def mutants(path: Path) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield (function, node, new text) of what may be changed in a file."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (inner for own in function.body for inner in ast.walk(own)):
            if (new := _changed(node)) is not None:
                yield function.name, node, new


def _changed(node: ast.AST) -> str | None:
    """Return what a node becomes, None where it is left alone."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        node.ops[0] = COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp) and type(node.op) in REACHED:
        node.op = REACHED[type(node.op)]()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("room")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, rows = random.Random(asked.seed), []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "alkit"
        shutil.copytree(
            HOME, copy, ignore=shutil.ignore_patterns(".venv*", ".git", "runs", "build")
        )
        room, calls = copy / "alkit" / asked.room, Path(folder) / "calls.json"
        plugin = {"MUTANTS_ROOM": f"alkit/{asked.room}/", "MUTANTS_CALLS": str(calls)}
        tests = ["tests/unit/" + asked.room, "tests/conformance/test_ordinary.py"]
        skip = ["-m", "not soak and not browser and not gpu"]
        where = [*[each for each in tests if (copy / each).exists()], *skip]
        _pytest(copy, "-p", "tests.mutants", *where, "--maxfail=1000", limit_s=7200, **plugin)
        seen = json.loads(calls.read_text())
        found = [(path, *each) for path in sorted(room.glob("*.py")) for each in mutants(path)]
        for path, function, node, new in rng.sample(found, min(asked.count, len(found))):
            key, kept = f"{path.name}:{function}", path.read_bytes()
            own = sorted(
                (each["seconds"], test) for test, each in seen.items() if key in each["seen"]
            )
            was = _put(path, node, new)
            by, chosen = "", [test for _, test in own[:MOST_TESTS]]
            if chosen and _pytest(copy, *chosen, limit_s=LIMIT_S):
                by = "a test of the room"
            path.write_bytes(kept)
            rows.append([asked.room, path.name, function, node.lineno, was, new, by])
            print(*rows[-1], sep=" | ", flush=True)
    with TABLE.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    dead = sum(bool(row[-1]) for row in rows)
    print(f"{asked.room}: {dead} of {len(rows)} mutants die")


if __name__ == "__main__":
    main()
