"""The command `alkit`: notebooks and sweeps, the committed results, split learning."""

import argparse
import ast
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from alkit import __version__
from alkit.data import paths
from alkit.data.extras import ExtraMissing
from alkit.records import cli_split, parameters, results, runs, tables
from alkit.records.contents import SHELVES, contents
from alkit.records.execution import Busy, RunFailed, figures_of
from alkit.records.parameters import Parameter, ParameterError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 for a failed run, 2 for bad input."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("alkit").setLevel(logging.INFO)
    # whoever ends the command with SIGTERM gets the same tidy end as with Ctrl-C
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return options.command(options)
    except (RunFailed, Busy, ConnectionError) as error:
        return _complain(str(error), FAILED)
    except (ValueError, OSError, ExtraMissing) as error:
        return _complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return _complain("interrupted; no process of it is left", INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alkit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"alkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute one notebook")
    run.add_argument("notebook", help="its path, its name or its number")
    run.add_argument(
        "--preset", default="smoke", help="smoke (the defaults), teach, cpu, paper, ..."
    )
    run.add_argument(
        "-p",
        dest="values",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="set parameters, as in -p seeds=[0,1] lr=1e-3",
    )
    run.add_argument("--timeout", type=int, metavar="S", help="seconds that any one cell may take")
    run.add_argument("--rows", action="store_true", help="print every recorded value")
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", help="execute all points of a grid, resumable")
    sweep.add_argument("file", help="YAML: notebook, preset, and grid or points")
    sweep.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (2)")
    sweep.add_argument("--threads", type=int, default=1, metavar="N", help="threads a run (1)")
    sweep.add_argument(
        "--timeout", type=int, metavar="S", help="seconds that any one cell may take"
    )
    sweep.add_argument("--force", action="store_true", help="also what has finished before")
    sweep.set_defaults(command=_sweep)

    for command in (run, sweep):
        command.add_argument("--record", action="store_true", help="put into notebooks/results/")

    listed = commands.add_parser("list", help="name the notebooks by shelf, and their presets")
    listed.set_defaults(command=_list)

    shown = commands.add_parser("results", help="summarise the committed records")
    shown.add_argument("--notebook", help="only of this notebook")
    shown.add_argument("--preset", help="only of this preset")
    shown.add_argument(
        "--add", nargs="+", type=Path, metavar="FILE", help="put these record.json into the tables"
    )
    shown.set_defaults(command=_results)

    cli_split.add(commands)
    return parser


def _list(options: argparse.Namespace) -> int:
    entries = contents()
    for shelf, heading in SHELVES.items():
        own = [each for each in entries if each.shelf == shelf]
        print(heading)
        _print_columns(
            [(f"  {e.name}", f"{e.minutes} min", e.title, _presets(e.path)) for e in own]
        )
    known = {each.path for each in entries}
    others = sorted(set((paths.root() / "notebooks").glob("*.ipynb")) - known)
    if others:
        print("Not in notebooks/index.yaml")
        _print_columns([(f"  {p.stem}", parameters.title(p), _presets(p)) for p in others])
    return OK


def _presets(path: Path) -> str:
    return " ".join(parameters.presets(path))


def _run(options: argparse.Namespace) -> int:
    notebook = parameters.find_notebook(options.notebook)
    overrides = _overrides(options.values, parameters.parameters(notebook))
    finished = runs.run(
        notebook, options.preset, overrides, record=options.record, timeout_s=options.timeout
    )
    _print_rows(finished.rows, options.rows)
    figures = figures_of(finished.path.parent)
    if options.record:
        figures = [Path(shutil.copy(each, paths.root() / "figures")) for each in figures]
    inside = _count_figures(finished.path)
    figures_inside = f" (figures inside: {inside})" if inside else ""
    print(f"notebook  {_relative(finished.path)}{figures_inside}")
    if finished.record:
        print(f"record    {_relative(finished.record)}")
    if finished.record and options.record:
        print(f"results   {_relative(paths.records_dir() / f'{notebook.stem}.csv')}")
    if figures:
        print(f"figures   {', '.join(map(_relative, figures))}")
    return OK


def _overrides(texts: Sequence[str], known: dict[str, Parameter]) -> dict[str, Any]:
    """Read `name=value` texts; what is no Python literal, or no value for it, is a string."""
    overrides: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals:
            raise ParameterError(f"-p {text}: write NAME=VALUE")
        overrides[name] = _value(name, written, known)
    return overrides


def _value(name: str, written: str, known: dict[str, Parameter]) -> Any:
    try:
        literal = ast.literal_eval(written)
    except (ValueError, SyntaxError, TypeError):
        return written
    # "-p data=2026" means the word where a word is wanted: the shell has eaten its quotes
    wants_text = name in known and "str" in known[name].type.split(" | ")
    return written if wants_text and not isinstance(literal, str | None) else literal


def _print_rows(rows: pd.DataFrame, everything: bool) -> None:
    """Print what a notebook reports; its recorded values only where they are asked for."""
    report = rows["metric"] == "report"
    for text in rows.loc[report, "value"]:
        print(text, end="\n\n")
    if everything:
        _print_table(rows[~report].drop(columns=["notebook", "preset", "run", *tables.RUN[3:]]))
    elif len(rows) and not report.any():
        print(f"{len(rows)} values recorded; --rows prints them")


WIDEST = 60  # characters of a value in a printed table


def _print_table(frame: pd.DataFrame) -> None:
    """Print a frame without the columns that say nothing."""
    empty = [name for name in frame if (frame[name].isna() | (frame[name] == "")).all()]
    if len(frame):
        text = frame.drop(columns=empty).map(_cell)
        print(text.to_string(index=False), end="\n\n")


def _cell(value: Any) -> str:
    if isinstance(value, list | str):
        text = str(value)
        return text if len(text) <= WIDEST else f"{text[:WIDEST]} ..."
    if isinstance(value, float) and not pd.isna(value):
        return f"{value:.4g}"
    return "" if pd.isna(value) else str(value)


def _count_figures(path: Path) -> int:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return sum("image/png" in data or "image/svg+xml" in data for data in outputs)


def _sweep(options: argparse.Namespace) -> int:
    points = runs.sweep(
        options.file,
        options.jobs,
        options.record,
        force=options.force,
        threads=options.threads,
        timeout_s=options.timeout,
    )
    failed = points["state"] == "failed"
    here = points["path"].notna()
    rows = [results.read(path) for path in points.loc[~failed & here, "path"]]
    if len(elsewhere := points.loc[~failed & ~here, "run"]):
        recorded = results.load()
        rows.append(recorded[recorded["run"].isin(elsewhere)])
    if rows:
        _print_summaries(pd.concat(rows))
    counts = points["state"].value_counts()
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if not failed.any():
        return OK
    for point in points[failed].to_dict("records"):
        cell = "" if pd.isna(point["cell"]) else f", cell {point['cell']:.0f}"
        kept = _relative(point["path"]) if isinstance(point["path"], Path) else "nothing kept"
        _complain(f"{point['name']}{cell} ({kept}):\n{point['error']}", FAILED)
    return FAILED


def _results(options: argparse.Namespace) -> int:
    if options.add:
        for table in tables.merge(options.add):
            print(f"written   {_relative(table)}")
        return OK
    name, preset = _stem(options.notebook), options.preset
    if not tables.runs(name, preset) and (everything := tables.runs()):
        there = sorted({f"{run['notebook']} ({run['preset']})" for run in everything})
        raise ParameterError(f"no record of that; there are: {', '.join(there)}")
    frame = results.load(name, preset)
    if not len(frame):
        print(f"no records in {_relative(paths.records_dir())} yet: alkit run NOTEBOOK --record")
    _print_summaries(frame)
    return OK


def _stem(notebook: str | None) -> str | None:
    """Return a notebook's name, of one that is no more, too; numbers are those of notebooks."""
    if notebook is None or not notebook.isdigit():
        return notebook and Path(notebook).stem
    return parameters.find_notebook(notebook).stem


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    for row in zip(*map(_padded, zip(*rows, strict=True)), strict=True):
        print("  ".join(row).rstrip())


def _padded(column: Sequence[str]) -> list[str]:
    return [text.ljust(max(map(len, column))) for text in column]


def _print_summaries(frame: pd.DataFrame) -> None:
    for (notebook, preset), part in frame.groupby(["notebook", "preset"], sort=False):
        print(f"{notebook} ({preset}), commit {', '.join(sorted(set(part['commit'])))}")
        _print_table(results.summary(part).drop(columns=["notebook", "preset"]))


def _complain(text: str, code: int) -> int:
    print(f"alkit: {text}", file=sys.stderr)
    return code


def _relative(path: Path) -> str:
    return os.path.relpath(path)
