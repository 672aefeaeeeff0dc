"""Results of notebook runs as tidy frames: load them, read one, put them side by side.

    recording.Run ──► runs/<name>/record.json ──► notebooks/results/*.csv ──► load
                      of each run, ignored        the tables, committed       one frame

The tables are plain CSV: `pandas.read_csv` reads them as well, see `alkit.records.tables`.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from alkit.records import tables
from alkit.records.origin import busy as busy
from alkit.records.recording import Run as Run
from alkit.records.rows import is_number

FIELDS = "notebook preset method model data seed metric value n unit".split()
COLUMNS = (*FIELDS, "run", *tables.RUN[3:])
BY = ("notebook", "preset", "metric", "method", "model", "data", "unit")
STATISTICS = ("n", "mean", "sd", "min", "max", "median")


def load(notebook: str | None = None, preset: str | None = None) -> pd.DataFrame:
    """Return the committed values of all matching runs as a tidy frame, one row a value.

    Returns: the columns `COLUMNS`, then those that only some notebooks have. `parameters`
        holds JSON as text, `value` numbers, texts, switches or lists.
    """
    heads = {run["run"]: run for run in tables.runs(notebook, preset)}
    names = dict.fromkeys(run["notebook"] for run in heads.values())
    rows = (row for name in names for row in tables.values(name) if row["run"] in heads)
    return _frame(heads[row["run"]] | row for row in rows)


def read(path: str | Path) -> pd.DataFrame:
    """Return the rows of one run, from its `record.json` or the executed notebook beside it.

    A notebook that records nothing has none.
    """
    path = Path(path).with_name("record.json")
    if not path.is_file():
        return _frame([])
    record = tables.read_record(path)
    named = record["notebook"], record["preset"], record["parameters"]
    head = {name: record[name] for name in tables.RUN[1:]} | {"run": tables.identity(*named)}
    return _frame(head | row for row in record["rows"])


def summary(frame: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Return n, mean, sd (n - 1), min, max and median of the numbers in each group.

    Args:
        by: what makes a group; by default all that distinguishes rows but the seed, the extra
            fields (an epoch, a contender) included; one that is called as a statistic is, as
            "mean", stands there as "mean of a row".
    """
    numbers = frame[frame["value"].map(is_number).astype(bool)]
    if by is None:
        numbers = numbers.rename(columns={name: f"{name} of a row" for name in STATISTICS[1:]})
        by = [*BY, *(n for n in numbers if n not in COLUMNS and numbers[n].notna().any())]
    told = {name: numbers[name].map(_as_text) for name in by}  # a list is no key
    values = numbers.assign(value=numbers["value"].astype(float), **told)
    groups = values.groupby(list(by), dropna=False, sort=False)["value"]
    result = groups.agg(n="count", mean="mean", sd="std", min="min", max="max", median="median")
    return result.reset_index()[[*by, *STATISTICS]]


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def table(
    frame: pd.DataFrame,
    *,
    rows: Sequence[str] = ("data", "model", "method"),
    columns: str = "metric",
) -> str:
    """Return a markdown table of means and spreads ("97.2 ± 0.4"), one line per label of `rows`.

    Labels that no row has are left out; one value alone stands without a spread. Units stand in
    the heads of metrics.

    Raises:
        ValueError: a cell would hold the mean of unlike things; names in what they differ.
    """
    labels = [name for name in rows if frame[name].notna().any()]
    _check_alike(frame, [*labels, columns, "unit"])
    stats = summary(frame, by=[*labels, columns, "unit"])
    if columns == "metric":
        named = [
            f"{m} ({u})" if u else m for m, u in zip(stats["metric"], stats["unit"], strict=True)
        ]
        stats["metric"] = named
    heads = list(dict.fromkeys(stats[columns]))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in stats.to_dict("records"):
        key = tuple("" if pd.isna(entry[name]) else str(entry[name]) for name in labels)
        cell = _mean_and_spread(entry["mean"], entry["sd"])
        lines.setdefault(key, {})[entry[columns]] = cell
    body = [[*key, *(cells.get(head, "") for head in heads)] for key, cells in lines.items()]
    rule = ["---"] * len(labels) + ["---:"] * len(heads)
    return "\n".join(f"| {' | '.join(map(str, r))} |" for r in [[*labels, *heads], rule, *body])


def _check_alike(frame: pd.DataFrame, by: list[str]) -> None:
    """See that the rows of a group differ in their seeds alone."""
    extra = [name for name in frame if name not in COLUMNS]
    free = [n for n in ("notebook", "preset", "method", "model", "data", *extra) if n not in by]
    for key, own in frame.groupby(by, dropna=False):
        several = [name for name in free if own[name].astype(str).nunique() > 1]
        if own.seed.astype(str).duplicated().any() and several:
            raise ValueError(
                f"{', '.join(map(str, key))}: rows differ in {', '.join(several)}, and their mean"
                " says nothing: name these among the rows, or select one of them"
            )


def _mean_and_spread(mean: float, sd: float) -> str:
    alone = f"{mean:.4g}" if abs(mean) < 10_000 else f"{mean:.0f}"
    if math.isnan(sd) or sd == 0:
        return alone if math.isnan(sd) else f"{alone} ± 0"
    places = max(1, -math.floor(math.log10(sd)))
    return f"{mean:.{places}f} ± {sd:.{places}f}"


def _frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as one tidy frame with `COLUMNS` first and extra fields after."""
    found = [dict(row) for row in rows]
    for row in found:
        row["parameters"] = json.dumps(row["parameters"], sort_keys=True)
    extra = dict.fromkeys(name for row in found for name in row if name not in COLUMNS)
    frame = pd.DataFrame(found, columns=[*COLUMNS, *extra])
    whole = dict.fromkeys(("seed", "n", "threads"), "Int64")
    return frame.astype({"value": object, "busy": float} | whole)
