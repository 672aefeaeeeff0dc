"""Run notebooks in batch: typed parameters, presets and sweeps, checked before anything starts.

How a checked run is executed stands in `alkit.records.execution`.
"""

import ast
import contextlib
import difflib
import hashlib
import itertools
import json
import os
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from alkit.data import paths
from alkit.records.cluster import execute_on
from alkit.records.execution import (
    Finished,
    Job,
    ParameterError,
    RunFailed,
    cells,
    execute,
    execute_all,
)

__all__ = [
    "Finished",
    "Parameter",
    "ParameterError",
    "RunFailed",
    "check",
    "find_notebook",
    "parameters",
    "plan",
    "plan_sweep",
    "preset_values",
    "run",
    "sweep",
]

READING = "reading"  # the tag of cells that only read committed records: no key counts them
SCALARS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
TYPES = {*SCALARS, *(f"list[{name}]" for name in ("int", "float", "str"))}


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's parameters cell: `name: type = default  # comment`."""

    name: str
    type: str
    default: Any
    comment: str


def find_notebook(name: str | Path, *folders: Path) -> Path:
    """Return the notebook of that path, name or number, of `folders` or of `notebooks/`."""
    wanted = Path(name) if str(name).endswith(".ipynb") else Path(f"{name}.ipynb")
    home = paths.root() / "notebooks"
    for folder in (*folders, Path.cwd(), home):
        if (folder / wanted).is_file():
            return (folder / wanted).resolve()
    numbered = sorted(home.glob(f"{wanted.stem}_*.ipynb")) if wanted.stem.isdigit() else []
    if len(numbered) == 1:
        return numbered[0].resolve()
    near = _nearest(wanted.stem, sorted(path.stem for path in home.glob("*.ipynb")))
    raise ParameterError(f"there is no notebook {name}{near}")


def parameters(notebook: str | Path) -> dict[str, Parameter]:
    """Read the one cell tagged `parameters`: lines of `name: type = literal  # comment`.

    Raises: ParameterError, naming notebook and line, where the cell is anything else.
    """
    path = find_notebook(notebook)
    tagged = [c for c in cells(path) if "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise ParameterError(f"{path.name} has {len(tagged)} cells tagged 'parameters': tag one")
    source = "".join(tagged[0]["source"])
    try:
        statements, comments = ast.parse(source).body, _comments(source)
    except SyntaxError as error:
        raise _bad_line(path, error.lineno or 1, f"is no Python: {error.msg}") from error
    found: dict[str, Parameter] = {}
    for statement in statements:
        one = _parameter(path, statement, comments)
        if one.name in found:
            raise _bad_line(path, statement.lineno, f"defines {one.name} a second time")
        found[one.name] = one
    return found


def check(
    known: Mapping[str, Parameter], values: Mapping[str, Any], source: str = "given"
) -> dict[str, Any]:
    """Return the values in their parameters' types (an int becomes a float where one is wanted).

    Args:
        source: who gave the values, for the messages.
    Raises: ParameterError for an unknown name or a value of another type.
    """
    checked = {}
    for name, value in values.items():
        if name not in known:
            allowed = ", ".join(known) or "none at all"
            near = _nearest(str(name), list(known))
            raise ParameterError(f"{source}: no parameter {name!r}{near} (allowed: {allowed})")
        try:
            checked[name] = _fit(value, known[name].type)
        except TypeError as error:
            raise ParameterError(f"{source}: {name} must be {error}") from error
    return checked


def preset_values(notebook: str | Path, preset: str) -> dict[str, Any]:
    """Return what a preset sets, from `params/<notebook>.<preset>.yaml` beside the notebook.

    The preset "smoke" is the notebook's defaults and has no file.
    """
    path = find_notebook(notebook)
    if preset == "smoke":
        return {}
    file = path.parent / "params" / f"{path.stem}.{preset}.yaml"
    if not re.fullmatch(r"[\w-]+", preset) or not file.is_file():
        there = presets(path)
        near = _nearest(preset, there)
        raise ParameterError(
            f"{path.name} has no preset {preset!r}{near} (there is: {', '.join(there)})"
        )
    return check(parameters(path), read_yaml(file), file.name)


def presets(path: Path) -> list[str]:
    """Name a notebook's presets; sweeps are none."""
    files = (path.parent / "params").glob(f"{path.stem}.*.yaml")
    names = sorted(file.name[len(path.stem) + 1 : -len(".yaml")] for file in files)
    return ["smoke", *(name for name in names if not name.endswith("sweep"))]


def title(path: Path) -> str:
    """Return the first heading of a notebook."""
    lines = (line for cell in cells(path) for line in "".join(cell["source"]).splitlines())
    return next((line.lstrip("# ") for line in lines if line.startswith("# ")), "")


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty file is an empty one."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ParameterError(f"{file.name} cannot be read as YAML: {error}") from error
    if not isinstance(content or {}, dict):
        raise ParameterError(f"{file.name} must hold lines of `name: value`")
    return content or {}


def run(
    notebook: str | Path,
    preset: str = "smoke",
    overrides: Mapping[str, Any] | None = None,
    *,
    record: bool = False,
    out_dir: str | Path | None = None,
    timeout_s: int | None = None,
    progress: bool = True,
) -> Finished:
    """Execute a notebook with a preset and overrides, in a process of its own.

    Args:
        record: write the results among the committed ones (else into `runs/records/`).
        out_dir: of the executed notebook; `runs/<notebook>/` by default.
        timeout_s: the limit of any one cell.
    Raises: ParameterError before anything starts, RunFailed afterwards.

    Example:
        run("02_al_pipeline", "cpu", {"seeds": [0, 1]}).rows
    """
    options: dict[str, Any] = {"record": record, "out_dir": out_dir, "timeout_s": timeout_s}
    return execute(plan(notebook, preset, overrides, progress=progress, **options))


def plan(
    notebook: str | Path,
    preset: str = "smoke",
    overrides: Mapping[str, Any] | None = None,
    *,
    record: bool = False,
    out_dir: str | Path | None = None,
    threads: int | None = None,
    timeout_s: int | None = None,
    progress: bool = True,
) -> Job:
    """Check everything that can be known beforehand and return the run as a `Job`.

    Args:
        threads: `OMP_NUM_THREADS` of the kernel; left as it is by default.
    """
    path = find_notebook(notebook)
    if timeout_s is not None and timeout_s <= 0:
        raise ParameterError(f"the time limit is {timeout_s} s: give a positive number of seconds")
    known = parameters(path)
    extra = check(known, overrides or {}, path.name)
    named = {"preset": preset} if "preset" in known else {}
    values = preset_values(path, preset) | named | extra
    code = ["".join(cell["source"]) for cell in cells(path) if _counts(cell)]
    full = {name: p.default for name, p in known.items()} | values
    folder = Path(out_dir) if out_dir else paths.runs_dir() / path.stem
    return Job(
        notebook=path,
        preset=preset,
        slug=_slug(extra),
        values=values,
        key=_digest([code, preset, full]),
        out_dir=folder.resolve(),
        record=record or os.environ.get("ALKIT_RECORD") == "1",
        threads=threads,
        timeout_s=timeout_s,
        progress=progress,
    )


def _counts(cell: Mapping[str, Any]) -> bool:
    """Tell code that a record may depend on from cells that only read what is recorded."""
    return cell["cell_type"] == "code" and READING not in cell["metadata"].get("tags", ())


def sweep(
    file: str | Path,
    jobs: int = 2,
    record: bool = False,
    progress: bool = True,
    *,
    force: bool = False,
    threads: int = 1,
    timeout_s: int | None = None,
    cluster: str | None = None,
) -> pd.DataFrame:
    """Execute every point of a sweep file that has not finished before, `jobs` at a time.

    Args:
        jobs: on this machine; a cluster has as many at a time as its workers have threads.
        threads: operator threads of each run; more of them than cores / jobs slow all runs down.
        force: execute finished points again; without it only those whose notebook has changed.
        cluster: address of a Dask scheduler on whose workers the points run instead of here, see
            `alkit.records.cluster.execute_on`.
    Returns: one row a point, as `alkit.records.execution.execute_all` does.
    Raises: ParameterError before anything starts; a failed point is a row, not an exception.
    """
    options = {"record": record, "threads": threads, "timeout_s": timeout_s, "progress": False}
    if jobs < 1 or threads < 1:
        raise ParameterError(f"jobs is {jobs} and threads is {threads}: give 1 or more of each")
    planned, how = plan_sweep(file, **options), {"force": force, "progress": progress}
    return execute_on(cluster, planned, **how) if cluster else execute_all(planned, jobs, **how)


def plan_sweep(file: str | Path, **options: Any) -> list[Job]:
    """Check all points of a sweep file and return their jobs; options are those of `plan`.

    The file names a `notebook`, maybe a `preset`, and either a `grid` (every combination of lists
    of values) or `points` (a list of mappings).
    """
    file = Path(file)
    content = read_yaml(file)
    if unknown := sorted(set(map(str, content)) - {"notebook", "preset", "grid", "points"}):
        allowed = "notebook, preset, and grid or points"
        raise ParameterError(f"{file.name}: {', '.join(unknown)} is not known (allowed: {allowed})")
    if not isinstance(content.get("notebook"), str) or ("grid" in content) == ("points" in content):
        raise ParameterError(f"{file.name} needs a notebook and either a grid or points")
    notebook = find_notebook(content["notebook"], file.parent, file.parent.parent)
    preset = str(content.get("preset", "smoke"))
    planned = [plan(notebook, preset, point, **options) for point in _points(content, file.name)]
    names = [job.name for job in planned]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ParameterError(f"{file.name} has a point twice: {', '.join(twice)}")
    return planned


def _points(content: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    points, grid = content.get("points"), content.get("grid")
    if "points" in content:
        if (
            not isinstance(points, list)
            or not points
            or not all(isinstance(p, dict) for p in points)
        ):
            raise ParameterError(f"{source}: points must be a list of {{name: value}}")
        return points
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ParameterError(f"{source}: grid must be lines of `name: [value, value]`")
    return [dict(zip(grid, p, strict=True)) for p in itertools.product(*grid.values())]


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    return {t.end[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _parameter(path: Path, line: ast.stmt, comments: Mapping[int, str]) -> Parameter:
    if (
        not isinstance(line, ast.AnnAssign)
        or not isinstance(line.target, ast.Name)
        or not line.value
    ):
        raise _bad_line(path, line.lineno, "must read `name: type = literal`")
    name, wanted = line.target.id, ast.unparse(line.annotation)
    if wanted == "None" or not set(wanted.split(" | ")) <= {*TYPES, "None"}:
        allowed = ", ".join(sorted(TYPES))
        raise _bad_line(path, line.lineno, f"has the type {wanted}: use {allowed}, or one | None")
    try:
        default = _fit(ast.literal_eval(line.value), wanted)
    except TypeError as error:
        raise _bad_line(path, line.lineno, f"is wrong: {name} must be {error}") from error
    except ValueError as error:
        advice = "is no literal: derive values in the next cell, where they follow an override"
        raise _bad_line(path, line.lineno, advice) from error
    return Parameter(name, wanted, default, comments.get(line.end_lineno or line.lineno, ""))


def _bad_line(path: Path, line: int, what: str) -> ParameterError:
    return ParameterError(f"{path.name}: line {line} of the parameters cell {what}")


def _nearest(name: str, among: list[str]) -> str:
    near = difflib.get_close_matches(name, among, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _fit(value: Any, wanted: str) -> Any:
    """Return the value as one of the wanted types, or raise a TypeError that says what to do."""
    for option in wanted.split(" | "):
        with contextlib.suppress(TypeError):
            return _convert(value, option)
    raise TypeError(f"{wanted}, not {value!r} ({type(value).__name__}): {_advice(value, wanted)}")


def _convert(value: Any, option: str) -> Any:
    if option.startswith("list["):
        if not isinstance(value, list | tuple):
            raise TypeError
        return [_convert(item, option[len("list[") : -1]) for item in value]
    fits = value is None if option == "None" else isinstance(value, SCALARS[option])
    # a bool is an int to Python, a switch to everybody else
    if not fits or isinstance(value, bool) != (option == "bool"):
        raise TypeError
    return float(value) if option == "float" else value


def _advice(value: Any, wanted: str) -> str:
    items = value if isinstance(value, list | tuple) else [value]
    for word in (item for item in items if isinstance(item, str) and "float" in wanted):
        if number := re.fullmatch(r"([+-]?\d+)(\.\d*)?[eE]([+-]?)(\d+)", word.strip()):
            whole, part, sign, power = number.groups()
            written = f"{whole}{part or '.0'}e{sign or '+'}{power}"
            return f"YAML reads {word} as text, write {written}"
    if "bool" in wanted:
        return "write True or False"
    if "list" in wanted and items is not value:
        return "write a list, as in ['a', 'b']" if "str" in wanted else "write a list, as in [0, 1]"
    if "str" in wanted:
        return f'write "{value}", with the quotes'
    return f"give a value of the type {wanted}"


def _slug(values: Mapping[str, Any]) -> str:
    """Return a file name's part that tells these values from all others."""
    texts = {name: _text(value) for name, value in sorted(values.items())}
    slug = "_".join(f"{name}={text}" for name, text in texts.items())
    safe = re.sub(r"[^\w.=+,-]+", "-", slug)[:80]
    plain = all(map(_is_plain, values.values())) and safe == slug
    return safe if plain else f"{safe}-{_digest(dict(values))}"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_plain(value: Any) -> bool:
    """Tell values that their text gives back from those that it may mix up."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    words = isinstance(value, str) and value not in ("None", "True", "False")
    return bool(re.fullmatch(r"[A-Za-z][\w+-]*", value)) if words else not isinstance(value, str)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
