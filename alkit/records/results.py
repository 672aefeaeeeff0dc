"""Named results of notebook runs: record them, read them back, put them side by side.

A run leaves one JSON file. Files under `notebooks/results/` are committed and are the truth from
which every table is built; files under `runs/records/` belong to the machine that made them.
"""

import json
import logging
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from alkit.data import paths
from alkit.data.files import replacing

__all__ = ["MIME", "Run", "busy", "key_of", "load", "read", "record_path", "summary", "table"]

MIME = "application/vnd.alkit.result+json"
FIELDS = "notebook preset method model data seed metric value n unit".split()
COLUMNS = (*FIELDS, "slug", "commit", "versions", "threads", "machine", "date")
BY = ("notebook", "preset", "metric", "method", "model", "data", "unit")
VERSIONS = ("python", "torch", "numpy", "alkit")
RENAMED = {"modern": "fixed_codes"}  # recipes of earlier records
STATISTICS = ("n", "mean", "sd", "min", "max", "median")
log = logging.getLogger("alkit")


class Run:
    """Collect the named values of one run of one notebook and write them as one record.

    Attributes:
        busy: share of the cores that were at work when it began, 0 to 1.

    Example:
        results = Run("02_al_pipeline", preset=preset)
        results.record("accuracy", 97.2, method="al", data="digits", seed=0, n=360, unit="%")
        results.save()
    """

    def __init__(
        self, notebook: str, preset: str = "smoke", *, parameters: Mapping[str, Any] | None = None
    ) -> None:
        self.notebook, self.preset = _name(notebook, "notebook"), _name(preset, "preset")
        given = (parameters or {}).items()
        self.parameters = {k: None if v is None else _plain(v, k) for k, v in given}
        self._rows: dict[str, dict[str, Any]] = {}
        self.busy = busy()  # by others: nothing of this run has been computed yet

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows recorded so far, in the order in which they were first recorded."""
        return list(self._rows.values())

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
        Raises: TypeError for other values, ValueError for numbers that are not finite.
        """
        if clash := sorted(set(extra or {}) & set(COLUMNS)):
            raise ValueError(
                f"extra fields {clash} of {metric!r}: these names are taken, choose others"
            )
        labels = {"method": method, "model": model, "data": data, "seed": _whole(seed, "seed")}
        free = {name: _plain(field, name) for name, field in (extra or {}).items()}
        key = json.dumps([metric, labels, free], sort_keys=True)
        if key in self._rows:
            log.warning("%s %s was recorded before and is replaced", metric, labels | free)
        measured = {"metric": metric, "value": _plain(value, metric), "n": _whole(n, "n")}
        _check_row(measured | {"unit": unit})
        row = {"notebook": self.notebook, "preset": self.preset, **labels, **measured}
        self._rows[key] = row | {"unit": unit} | free

    def save(self) -> Path:
        """Write the record, show it inside IPython as a MIME bundle, and return its path.

        The path is `record_path`'s: committed records only with `ALKIT_RECORD=1`.
        """
        slug = os.environ.get("ALKIT_RUN_SLUG", "")
        committed = os.environ.get("ALKIT_RECORD") == "1"
        content = self._header(slug) | {"rows": self.rows}
        path = record_path(self.notebook, self.preset, slug, committed=committed)
        _write(path, content)
        _show(content)
        return path

    def _header(self, slug: str) -> dict[str, Any]:
        """Return where, when and with what this run was made; nothing that names a person."""
        return {
            "notebook": self.notebook,
            "preset": self.preset,
            "slug": slug,
            "key": os.environ.get("ALKIT_RUN_KEY", ""),
            "parameters": self.parameters,
            "commit": _commit(),
            "versions": {"python": platform.python_version()}
            | {name: _version(name) for name in VERSIONS[1:]},
            "threads": _threads(),
            "machine": _machine() | {"busy": round(self.busy, 2)},
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def record_path(notebook: str, preset: str, slug: str = "", *, committed: bool = False) -> Path:
    """Return where the record of a run lies: `<notebook>.<preset>[.<slug>].json`."""
    folder = paths.records_dir() if committed else paths.runs_dir() / "records"
    parts = [notebook, preset, *([_name(slug, "slug")] if slug else [])]
    return folder / (".".join(parts) + ".json")


def load(
    notebook: str | None = None, preset: str | None = None, where: str | Path | None = None
) -> pd.DataFrame:
    """Return the tidy rows of all matching records, one row a value.

    A notebook's records are found by their names, see `record_path`.

    Args:
        where: a folder of records; the committed ones, `notebooks/results/`, by default.
    """
    asked = f"{notebook}.*.json" if notebook else "*.json"
    records = [_read_json(p) for p in sorted(Path(where or paths.records_dir()).glob(asked))]
    wanted = [
        record
        for record in records
        if notebook in (None, record["notebook"]) and preset in (None, record["preset"])
    ]
    return _frame(wanted)


def read(path: str | Path) -> pd.DataFrame:
    """Return the rows of one executed notebook (from its outputs) or of one record file."""
    path = Path(path)
    if path.suffix != ".ipynb":
        return _frame([_read_json(path)])
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    bundles = [output["data"][MIME] for output in outputs if MIME in output.get("data", ())]
    # a record saved twice holds the earlier one's rows: the last one stands
    return _frame({(b["notebook"], b["preset"], b.get("slug")): b for b in bundles}.values())


def key_of(path: Path) -> str | None:
    """Return the key of the code and parameters that a record was made with; None without one."""
    return _read_json(path).get("key") or None if path.is_file() else None


def summary(frame: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Return n, mean, sd (n - 1), min, max and median of the numbers in each group.

    Args:
        by: what makes a group; by default all that distinguishes rows but the seed, the extra
            fields (an epoch, a contender) included.
    """
    by = [*BY, *(name for name in frame if name not in COLUMNS)] if by is None else by
    numbers = frame[frame["value"].map(_is_number).astype(bool)]
    values = numbers.assign(value=numbers["value"].astype(float))
    groups = values.groupby(list(by), dropna=False, sort=False)["value"]
    result = groups.agg(n="count", mean="mean", sd="std", min="min", max="max", median="median")
    return result.reset_index()[[*by, *STATISTICS]]


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


def _check_row(row: dict[str, Any]) -> None:
    metric, value = row["metric"], row["value"]
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"metric is {metric!r}: it must be a name")
    words = not row.get("unit")
    for one in _leaves(value):
        if (words and isinstance(one, bool | str)) or (_is_number(one) and math.isfinite(one)):
            continue
        said = repr(value)[:60]
        raise ValueError(f"{metric} is {said}: it must be a number, or a text without a unit")
    for name in ("seed", "n"):
        _whole(row.get(name), name)


def _leaves(value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
    else:
        for one in value:
            yield from _leaves(one)


def _plain(value: Any, name: str) -> Any:
    """Return the value as what JSON can hold, or say why it cannot be recorded."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name!r} is {value}: record finite numbers only, or a word in its place")
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name!r} is a {type(value).__name__}: record a number, a string or a list of them"
        " (.item() or .tolist() makes one)"
    )


def _whole(value: Any, name: str) -> int | None:
    plain = None if value is None else _plain(value, name)
    if plain is None or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    raise TypeError(f"{name!r} is {value!r}: give a whole number, or leave it out")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(text: str, what: str) -> str:
    """Return a name that becomes part of a file name, or refuse one that would lead elsewhere."""
    if not re.fullmatch(r"\w[\w.=+,-]*", text):
        raise ValueError(f"{what} {text!r}: use letters, digits and - _ . = + , only")
    return text


def _mean_and_spread(mean: float, sd: float) -> str:
    alone = f"{mean:.4g}" if abs(mean) < 10_000 else f"{mean:.0f}"
    if math.isnan(sd) or sd == 0:
        return alone if math.isnan(sd) else f"{alone} ± 0"
    places = max(1, -math.floor(math.log10(sd)))
    return f"{mean:.{places}f} ± {sd:.{places}f}"


def _frame(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows of records as one tidy frame with `COLUMNS` first and extra fields after."""
    rows = [row | _origin(record) for record in records for row in record["rows"]]
    for row in rows:
        if (recipe := row.get("recipe")) in RENAMED:
            row["recipe"] = RENAMED[recipe]
    extra = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *extra])
    return frame.astype({"value": object, "seed": "Int64", "n": "Int64", "threads": "Int64"})


def _origin(record: dict[str, Any]) -> dict[str, Any]:
    machine = record["machine"]
    shared = f", {machine['busy']:.0%} busy before" if "busy" in machine else ""
    return {
        "slug": record.get("slug", ""),
        "commit": record["commit"],
        "versions": ", ".join(f"{name} {record['versions'][name]}" for name in VERSIONS),
        "threads": record["threads"],
        "machine": f"{machine['cores']} cores, {machine['processor']}, {machine['memory_gib']} GiB"
        + shared,
        "date": record["date"],
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = record["notebook"], record["preset"], _origin(record)
        _whole(record["threads"], "threads")
        for row in record["rows"]:
            _check_row(row)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a record of a run: {error!r}") from error
    return record


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a record whole or not at all; one line a row, so that a diff shows what changed."""
    head = json.dumps({k: v for k, v in content.items() if k != "rows"}, indent=1)
    rows = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in content["rows"])
    with replacing(path) as partial:
        partial.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def _show(content: dict[str, Any]) -> None:
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return
    text = f"{len(content['rows'])} values of {content['notebook']}, preset {content['preset']}"
    ipython.display.display({MIME: content, "text/plain": text}, raw=True)


def _commit() -> str:
    """Return the short commit, with a "+" if sources differ from it, or "unknown" without git."""
    git = ["git", "-C", str(paths.root())]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        # records made just before are no change of the source
        scope = ["status", "--porcelain", "--", ".", ":!notebooks/results"]
        state = subprocess.run([*git, *scope], capture_output=True, text=True)
    except OSError:
        return "unknown"
    if head.returncode or state.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if state.stdout.strip() else "")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _threads() -> int:
    """Return the operator threads of this process, without importing torch for it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def busy() -> float:
    """Return the share of the cores that were at work in the last minute, 0 to 1."""
    return min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gib = round(memory / 2**30, 1)
    return {"cores": os.cpu_count(), "processor": _processor(), "memory_gib": gib}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()
