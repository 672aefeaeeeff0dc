"""Run notebooks in batch: presets and sweeps, checked before anything starts.

What a notebook takes stands in `alkit.records.parameters`, how a checked run is executed in
`alkit.records.execution`.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from alkit.records import results, tables
from alkit.records.batch import execute_all
from alkit.records.execution import Job, alone, execute
from alkit.records.parameters import (
    ParameterError,
    changes,
    check,
    find_notebook,
    parameters,
    preset_values,
    slug,
)
from alkit.records.strict import read_yaml


@dataclass(frozen=True)
class Finished:
    """A run that ended well; `record` is None for a notebook that records nothing."""

    path: Path
    seconds: float
    peak_mib: float
    rows: pd.DataFrame
    record: Path | None


def run(
    notebook: str | Path,
    preset: str = "smoke",
    overrides: Mapping[str, Any] | None = None,
    *,
    record: bool = False,
    timeout_s: int | None = None,
    progress: bool = True,
) -> Finished:
    """Execute a notebook with a preset and overrides, in a process of its own.

    Args:
        record: put what it records into the tables of `notebooks/results/`, too.
        timeout_s: the limit of any one cell.
    Raises: ParameterError before anything starts, RunFailed afterwards; Busy where another process
        is at the same run.

    Example:
        run("02_al_pipeline", "cpu", {"seeds": [0, 1]}).rows
    """
    job = plan(notebook, preset, overrides, record=record, timeout_s=timeout_s, progress=progress)
    with alone(job):
        measured = execute(job)
        kept = [file for file in [job.folder / "record.json"] if file.is_file()]
        if record:
            tables.merge(kept)
        rows = results.read(job.target)
        return Finished(job.target, **measured, rows=rows, record=kept[0] if kept else None)


def plan(
    notebook: str | Path,
    preset: str = "smoke",
    overrides: Mapping[str, Any] | None = None,
    *,
    record: bool = False,
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
    named = {"preset": preset} if "preset" in known else {}
    values = preset_values(path, preset) | named | check(known, overrides or {}, path.name)
    full = {name: own.default for name, own in known.items()} | values
    return Job(
        notebook=path,
        preset=preset,
        slug=slug(changes(path, preset, full)),
        values=values,
        parameters=full,
        record=record,
        threads=threads,
        timeout_s=timeout_s,
        progress=progress,
    )


def sweep(
    file: str | Path,
    jobs: int = 2,
    record: bool = False,
    progress: bool = True,
    *,
    force: bool = False,
    threads: int = 1,
    timeout_s: int | None = None,
) -> pd.DataFrame:
    """Execute every point of a sweep file that has not finished before, `jobs` at a time.

    Args:
        threads: operator threads of each run; more of them than cores / jobs slow all runs down.
        force: execute finished points again; without it only those of other parameters.
    Returns: one row a point, as `alkit.records.batch.execute_all` does.
    Raises: ParameterError before anything starts; a failed point is a row, not an exception.
    """
    options = {"record": record, "threads": threads, "timeout_s": timeout_s, "progress": False}
    if jobs < 1 or threads < 1:
        raise ParameterError(f"jobs is {jobs} and threads is {threads}: give 1 or more of each")
    return execute_all(plan_sweep(file, **options), jobs, force=force, progress=progress)


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
