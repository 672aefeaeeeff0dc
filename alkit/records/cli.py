"""The command `alkit`: notebooks and sweeps, the committed results, split learning."""

import argparse
import ast
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from alkit import __version__
from alkit.data import paths
from alkit.records import cli_split, parameters, results, tables
from alkit.records.contents import SHELVES, contents
from alkit.records.parameters import Parameter, ParameterError

if TYPE_CHECKING:
    from alkit.records.batch import Result  # it needs papermill

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None, *, front: Any = None) -> int:
    """Run the command and return its exit code: 1 for a failed run, 2 for bad input."""
    options = _parser().parse_args(arguments, argparse.Namespace(front=front))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("alkit").setLevel(logging.INFO)
    # whoever ends the command with SIGTERM gets the same tidy end as with Ctrl-C
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return options.command(options)
    except ConnectionError as error:
        return _complain(str(error), FAILED)
    except ModuleNotFoundError as error:  # of an extra
        return _complain(f"{error.name} is not installed: pip install 'alkit[all]'", BAD_INPUT)
    except (ValueError, OSError) as error:
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
    run.add_argument("--preset", default="smoke", help="smoke (the defaults), teach, cpu, ...")
    values: dict[str, Any] = {
        "nargs": "+",
        "action": "extend",
        "default": [],
        "metavar": "NAME=VALUE",
    }
    run.add_argument("-p", dest="values", help="set parameters, as in -p seed=1 lr=1e-3", **values)
    run.add_argument("--rows", action="store_true", help="print every recorded value")
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", help="execute all points of a grid, resumable")
    sweep.add_argument("file", type=Path, help="YAML: notebook, preset, and grid or points")
    sweep.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (2)")
    sweep.add_argument("--threads", type=int, default=1, metavar="N", help="threads a run (1)")
    sweep.add_argument("--force", action="store_true", help="also what has finished before")
    sweep.set_defaults(command=_sweep)

    for command in (run, sweep):
        command.add_argument("--record", action="store_true", help="put into notebooks/results/")
        command.add_argument(
            "--timeout", type=int, metavar="S", help="seconds that a cell may take"
        )

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
        print(heading)
        for each in (each for each in entries if each.shelf == shelf):
            presets = " ".join(parameters.presets(each.path))
            print(f"  {each.name:22} {each.minutes:3} min  {each.title}  ({presets})")
    known = {each.path for each in entries}
    for path in sorted(set((paths.root() / "notebooks").glob("*.ipynb")) - known):
        print(f"  {path.stem:22} not in index.yaml  ({' '.join(parameters.presets(path))})")
    return OK


def _run(options: argparse.Namespace) -> int:
    from alkit.records import batch

    notebook = parameters.find_notebook(options.notebook)
    overrides = _overrides(options.values, parameters.parameters(notebook))
    job = batch.plan(notebook, options.preset, overrides, timeout_s=options.timeout)
    (result,) = batch.execute_all([job], record=options.record, force=True, cells=True)
    if result.state == "failed":
        return _complain_of(result)
    _print_rows(results.read(job.target), options.rows)
    figures = sorted([*job.folder.glob("*.png"), *job.folder.glob("*.svg")])
    if options.record:
        figures = [Path(shutil.copy(each, paths.root() / "figures")) for each in figures]
    print(f"notebook  {_relative(job.target)}")
    if (record := job.folder / "record.json").is_file():
        print(f"record    {_relative(record)}")
        if options.record:
            print(f"results   {_relative(paths.records_dir() / notebook.stem)}.csv")
    if figures:
        print(f"figures   {', '.join(map(_relative, figures))}")
    return OK


def _overrides(texts: Sequence[str], known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Read `name=value` texts; what is no Python literal, or no value for it, is a string."""
    overrides: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals:
            raise ParameterError(f"-p {text}: write NAME=VALUE")
        try:
            value = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError):
            value = written
        # "-p data=2026" means the word where a word is wanted: the shell has eaten its quotes
        wants_text = name in known and "str" in known[name].type.split(" | ")
        overrides[name] = written if wants_text and not isinstance(value, str | None) else value
    return overrides


def _print_rows(rows: pd.DataFrame, everything: bool) -> None:
    """Print what a notebook reports; its recorded values only where they are asked for."""
    report = rows["metric"] == "report"
    for text in rows.loc[report, "value"]:
        print(text, end="\n\n")
    if everything:
        _print_table(rows[~report].drop(columns=["notebook", "preset", "run", *tables.RUN[3:]]))
    elif len(rows) and not report.any():
        print(f"{len(rows)} values recorded; --rows prints them")


def _print_table(frame: pd.DataFrame) -> None:
    """Print a frame without the columns that say nothing."""
    text = frame.astype(object).where(frame.notna(), "")
    text = text.loc[:, (text != "").any()]
    if len(text):
        shown = text.to_string(index=False, float_format="{:.4g}".format, max_colwidth=60)
        print(shown, end="\n\n")


def _sweep(options: argparse.Namespace) -> int:
    from alkit.records import batch

    if options.jobs < 1:
        raise ParameterError(f"--jobs is {options.jobs}: give 1 or more")
    jobs = batch.plan_sweep(options.file, threads=options.threads, timeout_s=options.timeout)
    ended = batch.execute_all(jobs, options.jobs, record=options.record, force=options.force)
    good = [result for result in ended if result.state != "failed"]
    rows = [results.read(result.job.target) for result in good if not result.run]
    if known := [result.run for result in good if result.run]:
        recorded = results.load()
        rows.append(recorded[recorded["run"].isin(known)])
    if rows:
        _print_summaries(pd.concat(rows))
    states = [result.state for result in ended]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return max([_complain_of(result) for result in ended if result not in good], default=OK)


def _complain_of(result: "Result") -> int:
    """Print why a run has failed, and where; return the exit code."""
    place = f"cell {result.cell}" if result.cell else "before its first cell"
    kept = _relative(result.job.partial) if result.job.partial.is_file() else "nothing kept"
    return _complain(f"{result.job.folder.name} failed, {place} ({kept}):\n{result.error}", FAILED)


def _results(options: argparse.Namespace) -> int:
    if options.add:
        for table in tables.merge(options.add):
            print(f"written   {_relative(table)}")
        return OK
    name, preset = options.notebook, options.preset
    if name:  # also of a notebook that is no more
        name = (parameters.find_notebook(name) if name.isdigit() else Path(name)).stem
    if not tables.runs(name, preset) and (everything := tables.runs()):
        there = sorted({f"{run['notebook']} ({run['preset']})" for run in everything})
        raise ParameterError(f"no record of that; there are: {', '.join(there)}")
    frame = results.load(name, preset)
    if not len(frame):
        print(f"no records in {_relative(paths.records_dir())} yet: alkit run NOTEBOOK --record")
    _print_summaries(frame)
    return OK


def _print_summaries(frame: pd.DataFrame) -> None:
    for (notebook, preset), part in frame.groupby(["notebook", "preset"], sort=False):
        print(f"{notebook} ({preset}), commit {', '.join(sorted(set(part['commit'])))}")
        _print_table(results.summary(part).drop(columns=["notebook", "preset"]))


def _complain(text: str, code: int) -> int:
    print(f"alkit: {text}", file=sys.stderr)
    return code


def _relative(path: Path) -> str:
    return os.path.relpath(path)
