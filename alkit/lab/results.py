"""Records of notebooks: a file a run, and committed tables of runs and values, as plain CSV.

    Run ──► runs/<name>/record.json ──► notebooks/results/*.csv ──► load
            of each run, ignored        `merge`, one at a time      one frame, a row a value

`CONTRIBUTING.md` describes the tables. A text that could be taken for a number is in double quotes.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from alkit.base import paths
from alkit.base.files import replacing
from alkit.lab.parameters import check, parameters

FOLDER = "ALKIT_RUN_FOLDER"  # a runner tells its kernel
TABLES = "notebooks/results"
RUN = "run notebook preset parameters commit versions threads machine busy date".split()
VALUE = "run method model data seed metric value n unit".split()
FIRST = "notebook preset method model data seed metric value n unit run".split()
JSON = {"parameters", "value"}  # columns that always hold JSON
Row = dict[str, Any]


class Run:
    """Collect the named values of one run of one notebook and write them as one record.

    Attributes:
        parameters: all of the notebook, as its names hold them now; none of a script.
        busy: share of the cores that others used when it began, 0 to 1; a notebook that trains for
            long before it takes times sets it anew.

    Example:
        results = Run("20_speed", preset=preset)
        results.record("accuracy", 97.2, method="al", data="digits", seed=0, n=360, unit="%")
        results.save()
    """

    def __init__(self, notebook: str, preset: str = "smoke") -> None:
        self.notebook, self.preset = notebook, preset
        names = vars(sys.modules["__main__"])
        known = parameters(notebook) if "get_ipython" in names else {}
        held = {name: names[name] for name in known if name in names}
        self.parameters = check(known, held, f"the parameters of {notebook}, as they are now")
        self.busy = busy()  # by others: nothing of this run has been computed yet
        self._rows: dict[str, Row] = {}

    @property
    def rows(self) -> list[Row]:
        """The rows recorded so far, in the order of their first recording."""
        named = {"notebook": self.notebook, "preset": self.preset}
        return [named | row for row in self._rows.values()]

    def record(
        self,
        metric: str,
        value: Any,
        *,
        method: str | None = None,
        model: str | None = None,
        data: str | None = None,
        seed: int | None = None,
        n: int | None = None,
        unit: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one row; the same row recorded again (a cell run twice) takes the place of the first.

        Args:
            value: a finite number, bool, string, or a list of these; 0-d tensors become numbers.
            n: how many test items the value is a mean of.
            extra: further fields, such as an epoch or the index of a repetition.
        Raises:
            ValueError: a number that is not finite, or a name of `extra` that is taken.
        """
        free = _plain(dict(extra or {}))
        if clash := sorted({*free} & {*RUN, *VALUE}):
            raise ValueError(f"extra fields {clash} of {metric!r}: these names are taken")
        labels = {"method": method, "model": model, "data": data, "seed": _plain(seed)}
        measured = {"metric": metric, "value": _plain(value), "n": _plain(n), "unit": unit}
        key = json.dumps([metric, labels, free], sort_keys=True)
        self._rows[key] = labels | measured | free

    def save(self) -> Path:
        """Write the record whole or not at all, and return its path: `runs/<name>/record.json`.

        `alkit run --record`, a sweep or `alkit results --add` puts it into the tables.
        """
        named = {"notebook": self.notebook, "preset": self.preset, "parameters": self.parameters}
        path = Path(os.environ.get(FOLDER) or folder_of(named)) / "record.json"
        rows = [*self._rows.values()]
        content = named | origin() | {"busy": round(self.busy, 2), "rows": rows}
        with replacing(path) as partial:
            partial.write_text(json.dumps(content, allow_nan=False, indent=1), encoding="utf-8")
        return path


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; numbers of numpy and torch are numbers."""
    return json.loads(json.dumps(value, allow_nan=False, default=lambda each: each.item()))


def busy() -> float:
    """Return the share of the cores that others use now, 0 to 1: this process sleeps meanwhile."""
    import psutil  # among the packages of notebooks

    return psutil.cpu_percent(0.1) / 100


def origin() -> dict[str, Any]:
    """Return commit, versions, operator threads, machine and time of now; nobody's name."""
    names = ("torch", "numpy", "alkit")
    versions = [f"python {platform.python_version()}", *(f"{n} {version(n)}" for n in names)]
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    kind = found[1] if found else platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": _commit(),
        "versions": ", ".join(versions),
        "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()} cores, {kind}, {gib:.1f} GiB",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """Return the short commit, with a "+" if sources differ from it, or "unknown" without git."""
    words = "git status --porcelain=v2 --branch -- . :!notebooks/results".split()  # no source
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "text": True}
    try:
        head, *others = subprocess.check_output(words, cwd=paths.root(), **quiet).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    changed = any(not line.startswith("#") for line in others)
    return head.split()[-1][:8] + ("+" if changed else "")


def identity(run: Mapping[str, Any]) -> str:
    """Return the identity of a run: a digest of its notebook, preset and parameters."""
    text = json.dumps([run[name] for name in RUN[1:4]], sort_keys=True)
    return f"r{sha256(text.encode()).hexdigest()[:9]}"  # no table takes it for a number


def folder_of(run: Mapping[str, Any]) -> Path:
    """Return the folder of a run: `runs/NOTEBOOK.PRESET.IDENTITY`."""
    return paths.root() / "runs" / f"{run['notebook']}.{run['preset']}.{identity(run)}"


def merge(files: Iterable[str | Path]) -> None:
    """Put records into the tables, each in the place of an earlier one of the same run.

    One process at a time; a table is written whole or not at all.
    """
    for record in [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]:
        notebook, rows = record["notebook"], record.pop("rows")
        if not re.fullmatch(r"\w[\w.=+,-]*", notebook):  # it becomes the name of a file
            raise ValueError(f"notebook {notebook!r}: use letters, digits and - _ . = + , only")
        head = {"run": identity(record)}
        new = {notebook: (VALUE, [head | row for row in rows]), "runs": (RUN, [head | record])}
        for table, (first, added) in new.items():
            others = [row for row in rows_of(table) if row["run"] != head["run"]]
            _write(table, first, [*others, *added])


def rows_of(table: str = "runs") -> list[Row]:
    """Return the rows of a committed table, such as all runs; a row has the fields of its run."""
    file = paths.root() / TABLES / f"{table}.csv"
    if not file.exists():
        return []
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    if missing := {*(RUN if table == "runs" else VALUE)} - {*frame}:
        raise ValueError(f"{file.name} lacks the columns {', '.join(sorted(missing))}")
    rows = (zip(frame, map(_value, cells), strict=True) for cells in frame.to_numpy())
    return [{n: v for n, v in row if v is not None or n in {*RUN, *VALUE}} for row in rows]


def _write(table: str, first: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table: the columns `first`, then all others, sorted."""
    names = [*first, *sorted({name for row in rows for name in row} - set(first))]
    cells = {name: [_text(name, row.get(name)) for row in rows] for name in names}
    with replacing(paths.root() / TABLES / f"{table}.csv") as partial:
        pd.DataFrame(cells, columns=names).to_csv(partial, index=False, lineterminator="\n")


def _value(cell: str) -> Any:
    try:
        return json.loads(cell) if cell else None
    except ValueError:
        return cell


def _text(name: str, value: Any) -> str:
    if value is None or (name == "unit" and not value):
        return ""
    plain = isinstance(value, str) and name not in JSON and _value(value) == value
    if plain and pd.isna(pd.to_numeric(value, errors="coerce")):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def load(notebook: str | None = None, preset: str | None = None) -> pd.DataFrame:
    """Return the committed values of all matching runs, one row a value.

    Columns: keys of the values, the values, data on their runs, then columns of only some
    notebooks. `parameters` holds JSON as text, `value` numbers, texts or lists.
    """
    heads = {}
    for run in rows_of():
        if notebook in (None, run["notebook"]) and preset in (None, run["preset"]):
            run["parameters"] = json.dumps(run["parameters"], sort_keys=True)
            heads[run["run"]] = run
    names = dict.fromkeys(run["notebook"] for run in heads.values())
    found = (row for name in names for row in rows_of(name) if row["run"] in heads)
    rows = [heads[row["run"]] | row | {"unit": row["unit"] or ""} for row in found]
    extra = dict.fromkeys(name for row in rows for name in row if name not in (*FIRST, *RUN))
    frame = pd.DataFrame(rows, columns=[*FIRST, *RUN[3:], *extra])
    whole = dict.fromkeys(("seed", "n", "threads"), "Int64")
    return frame.astype({"value": object, "busy": float} | whole)
