"""The committed results as tables: `notebooks/results/runs.csv`, and a CSV per notebook.

    runs.csv         a row a run: run, notebook, preset, parameters, commit, versions, ...
    NOTEBOOK.csv     a row a value: run, method, model, data, seed, metric, value, n, unit, ...

`run` joins the two: a digest of notebook, preset and parameters. `parameters` and `value` hold
JSON; other cells hold plain text and numbers, and a text that could be taken for a number or
for nothing is in double quotes. Runs are sorted, so a new run is a few new lines in a diff.

Runs write files of their own (see `alkit.records.recording`); `merge` alone writes tables, and one
process at a time.
"""

import csv
import functools
import hashlib
import io
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from alkit.data import paths
from alkit.data.files import locked, replacing
from alkit.records.parameters import defaults
from alkit.records.rows import check_row, safe_name

RUN = "run notebook preset parameters commit versions threads machine busy date".split()
VALUE = "run method model data seed metric value n unit".split()
FIXED = {*RUN, *VALUE}
IN_JSON = {"parameters", "value"}
# what JSON or pandas takes for a switch or for nothing
WORDS = set("true false null True False TRUE FALSE None NA N/A n/a NULL <NA> #N/A #NA".split())
WAIT_S = 300  # for another writer, who needs a second
Row = dict[str, Any]


class Unreadable(ValueError):
    """A table or a record that is not what it should be."""


def identity(notebook: str, preset: str, parameters: Mapping[str, Any]) -> str:
    """Return what a run is known by in the tables."""
    text = json.dumps([notebook, preset, dict(parameters)], sort_keys=True)
    return f"r{hashlib.sha256(text.encode()).hexdigest()[:9]}"  # no table takes it for a number


def key(notebook: str, preset: str, parameters: Mapping[str, Any]) -> str:
    """Return what tells whether a run has been before.

    A parameter that the notebook did not have then counts with its default.
    """
    return identity(notebook, preset, {**defaults(notebook), **parameters})


def known() -> dict[str, str]:
    """Return by `key` which committed runs there are."""
    return {key(*_named(run)): run["run"] for run in runs()}


def runs(notebook: str | None = None, preset: str | None = None) -> list[Row]:
    """Return the committed runs, of a notebook or a preset or all, sorted."""
    return [
        run
        for run in _read(paths.records_dir() / "runs.csv")
        if notebook in (None, run["notebook"]) and preset in (None, run["preset"])
    ]


def values(notebook: str) -> list[Row]:
    """Return the committed values of a notebook's runs; a row has what its run gave it."""
    return _read(paths.records_dir() / f"{notebook}.csv")


def merge(files: Iterable[Path]) -> list[Path]:
    """Put the records of runs into the tables, each in the place of the same run's earlier one.

    Args:
        files: `record.json` of finished runs.
    Returns: the tables that were written.
    Raises:
        Unreadable: one of them is no record; then no table is changed.
    """
    records = [read_record(file) for file in files]
    folder = paths.records_dir()
    if not records:
        return []
    with _alone(folder / "runs.csv"):
        kept = runs()
        written = []
        for notebook in sorted({record["notebook"] for record in records}):
            own = [record for record in records if record["notebook"] == notebook]
            kept, rows = _merged(kept, values(notebook), own)
            written.append(folder / f"{notebook}.csv")
            _write(written[-1], VALUE, rows)
        _write(folder / "runs.csv", RUN, kept)
    return [*written, folder / "runs.csv"]


def _merged(kept: list[Row], rows: list[Row], records: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return runs and a notebook's values with these records of the notebook, sorted by run."""
    new = {key(*_named(record)): record for record in records}
    notebook = records[0]["notebook"]
    own = {run["run"] for run in kept if run["notebook"] == notebook}
    gone = {run["run"] for run in kept if run["run"] in own and key(*_named(run)) in new}
    kept = [run for run in kept if run["run"] not in gone]
    # a writer that was killed may have left values whose run it did not come to
    rows = [row for row in rows if row["run"] in own - gone]
    for record in new.values():
        head = {"run": identity(*_named(record))}
        kept.append(head | {name: record[name] for name in RUN[1:]})
        rows += [row | head for row in record["rows"]]
    kept.sort(key=_place)
    place = {run["run"]: at for at, run in enumerate(kept)}
    return kept, sorted(rows, key=lambda row: place[row["run"]])  # within a run as recorded


def _place(run: Row) -> tuple[Any, ...]:
    """Return what sorts runs: by name, then by the value of one parameter after the other."""
    return (
        run["notebook"],
        run["preset"],
        [(k, _rank(v)) for k, v in sorted(run["parameters"].items())],
    )


def _rank(value: Any) -> tuple[Any, ...]:
    """Return what sorts values of any kind: nothing, numbers, texts, lists."""
    if isinstance(value, list):
        return 3, [_rank(item) for item in value]
    return (0,) if value is None else (2 if isinstance(value, str) else 1, value)


def _named(run: Row) -> tuple[str, str, dict[str, Any]]:
    return run["notebook"], run["preset"], run["parameters"]


def read_record(file: Path) -> Row:
    """Return the record that a run has left, as `alkit.records.recording.Run` writes it.

    Raises:
        Unreadable: it is none; says why.
    """
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        _check(record)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise Unreadable(f"{file.name} is not a record of a run: {said}") from error
    return record


def _check(record: Row) -> None:
    _ = [record[what] for what in RUN[1:]]
    for what in ("notebook", "preset"):
        safe_name(record[what], what)  # it becomes a file's
    if not isinstance(record["parameters"], dict):
        raise TypeError(f"parameters is {record['parameters']!r}: it must be {{name: value}}")
    for row in record["rows"]:
        check_row(row)
        if clash := sorted(set(row) & set(RUN)):
            raise ValueError(f"a row has the fields {clash}, which are the run's")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until nobody else writes the tables."""
    end = time.monotonic() + WAIT_S
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(path))
                break
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield


def _read(file: Path) -> list[Row]:
    if not file.is_file():
        return []
    stat = file.stat()
    return [dict(row) for row in _parsed(file, stat.st_mtime_ns, stat.st_size)]


@functools.lru_cache(maxsize=64)  # notebooks and figures ask for the same ones
def _parsed(file: Path, changed_ns: int, size: int) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as text:
        lines = csv.reader(text, strict=True)
        try:
            names = next(lines, [])
            if "run" not in names or len(set(names)) < len(names):
                raise Unreadable(
                    "its first line must name the columns, `run` among them, each once"
                )
            return [_row(names, cells) for cells in lines]
        except (ValueError, TypeError, RecursionError, csv.Error) as error:
            place = f"{file.name}, line {lines.line_num},"
            raise Unreadable(f"{place} cannot be read: {error}") from error


def _row(names: list[str], cells: list[str]) -> Row:
    if len(cells) != len(names):
        raise Unreadable(f"it has {len(cells)} cells, and the first line {len(names)}")
    row = {
        name: json.loads(cell) if name in IN_JSON else _value(cell)
        for name, cell in zip(names, cells, strict=True)
        if cell or name in FIXED
    }
    if "metric" in row:
        row["unit"] = row["unit"] or ""
        check_row(row)
    return row


def _value(cell: str) -> Any:
    return (cell if _is_text(cell) else json.loads(cell)) if cell else None


def _cell(name: str, value: Any) -> str:
    if value is None or (name == "unit" and not value):
        return ""
    plain = isinstance(value, str) and name not in IN_JSON and _is_text(value)
    return value if plain else _json(value)


@functools.lru_cache(maxsize=10_000)
def _is_text(cell: str) -> bool:
    """Tell a text from what somebody could take for a number, nothing, or JSON."""
    if not cell or cell in WORDS or cell[0] in '"[{':
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)


def _write(file: Path, first: list[str], rows: list[Row]) -> None:
    extra = sorted({name for row in rows for name in row} - set(first))
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*first, *extra])
    lines.writerows([_cell(n, row.get(n)) for n in (*first, *extra)] for row in rows)
    with replacing(file) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8", newline="")
