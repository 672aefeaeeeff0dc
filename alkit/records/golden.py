"""Which runs are older than their method: digests of what every method computes.

`golden.csv` has a digest per method of the golden losses and weights that the tests compare
(`python -m tests.golden` writes both). A run keeps the digests of its methods. When a change of the
code moves a method's numbers, its digest moves, and the runs that kept another one are *stale*.
"""

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from alkit.records import tables
from alkit.records.parameters import ParameterError, changes, slug

FILE = Path(__file__).with_suffix(".csv")


def digests() -> dict[str, str]:
    """Return today's digest by method."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return {row["method"]: row["digest"] for row in csv.DictReader(lines)}


def of_methods(names: Iterable[str | None]) -> dict[str, str]:
    """Return the digests of those names that are methods; others, such as rivals, have none."""
    named = set(names)
    return {method: digest for method, digest in digests().items() if method in named}


def stale(notebook: str | None = None, preset: str | None = None) -> tuple[pd.DataFrame, int]:
    """Return the committed runs whose methods compute something else today.

    Returns: a row a run, with the names of these methods and what differs from its preset; and how
        many runs were recorded without digests, of which this can't be known.
    """
    today, rows, unknown = digests(), [], 0
    for run in tables.runs(notebook, preset):
        unknown += not run["golden"]
        moved = [name for name, digest in run["golden"].items() if today.get(name) != digest]
        if moved:
            words = {name: run[name] for name in ("run", "notebook", "preset")}
            own = {"parameters": _differing(run), "methods": ", ".join(moved)}
            rows.append(words | own | {"commit": run["commit"], "date": run["date"][:10]})
    columns = ["run", "notebook", "preset", "parameters", "methods", "commit", "date"]
    return pd.DataFrame(rows, columns=columns), unknown


def _differing(run: tables.Row) -> str:
    try:
        return slug(changes(run["notebook"], run["preset"], run["parameters"]))
    except ParameterError:  # of a notebook or a preset that is no more
        return json.dumps(run["parameters"])
