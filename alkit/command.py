"""The command `alkit`: notebooks and sweeps, the committed results, the order of a pipeline."""

import argparse
import ast
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import alkit
from alkit.base import paths
from alkit.judging import orders
from alkit.lab import parameters, results

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
ENDED = ("done", "before")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 for a failed run, 2 for bad input."""
    options = _parser().parse_args(arguments)
    # SIGTERM ends the command as tidily as Ctrl-C does
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return options.command(options) or OK
    except (ValueError, OSError, ModuleNotFoundError) as error:
        where = "" if (paths.root() / "notebooks").is_dir() else "; no checkout of alkit is here"
        return _complain(f"{error}{where}", BAD_INPUT)
    except KeyboardInterrupt:
        return _complain("interrupted; no process of it is left", INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alkit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"alkit {alkit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute one notebook")
    run.add_argument("notebook", help="its path, its name or its number")
    run.add_argument("--preset", default="smoke", help="smoke (the defaults), teach, cpu, ...")
    values: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    values |= {"metavar": "NAME=VALUE", "help": "set parameters, as in -p seed=1 lr=1e-3"}
    run.add_argument("-p", dest="values", **values)
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", help="execute all points of a grid, resumable")
    sweep.add_argument("file", type=Path, help="YAML: notebook, preset, and grid or points")
    sweep.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (2)")
    sweep.add_argument("--threads", type=int, default=1, metavar="N", help="threads a run (1)")
    sweep.add_argument("--force", action="store_true", help="also what has finished before")
    sweep.set_defaults(command=_sweep)

    for each in (run, sweep):
        each.add_argument("--record", action="store_true", help="put into notebooks/results/")
        each.add_argument("--timeout", type=int, metavar="S", help="seconds that a cell may take")

    commands.add_parser("list", help="name the notebooks by shelf").set_defaults(command=_list)
    shown = commands.add_parser("results", help="count the committed runs")
    shown.add_argument("--notebook", default="", help="only of this notebook")
    shown.add_argument("--add", nargs="+", metavar="FILE", help="put these record.json there")
    shown.set_defaults(command=_results)
    orders.add(commands)
    return parser


def contents() -> list[dict[str, Any]]:
    """Return the notebooks in the order for reading: `notebooks/index.yaml`."""
    return yaml.safe_load((paths.root() / "notebooks" / "index.yaml").read_text(encoding="utf-8"))


def _list(options: argparse.Namespace) -> None:
    for each in contents():
        presets = " ".join(parameters.presets(parameters.find_notebook(each["name"])))
        print("{shelf:7} {name:22} {minutes:3} min  {title}".format_map(each), f" ({presets})")


def _run(options: argparse.Namespace) -> int:
    from alkit.lab import batch  # it needs papermill

    notebook = parameters.find_notebook(options.notebook)
    values = dict(map(_value, options.values))
    job = batch.plan(notebook, options.preset, values, timeout_s=options.timeout)
    if failed := _failures(batch.sweep([job], record=options.record, force=True)):
        return failed
    record = job.folder / "record.json"
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"] if record.exists() else []
    for text in (row["value"] for row in rows if row["metric"] == "report"):
        print(text, end="\n\n")
    for each in sorted([*job.folder.glob("*.png"), *job.folder.glob("*.svg")]):
        print(shutil.copy(each, paths.root() / "figures") if options.record else each)
    print(os.path.relpath(job.target))
    return OK


def _value(text: str) -> tuple[str, Any]:
    """Read `name=value`; a value that isn't a Python literal is a string."""
    name, equals, written = text.partition("=")
    if not equals:
        raise ValueError(f"-p {text}: write NAME=VALUE")
    try:
        return name, ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return name, written


def _sweep(options: argparse.Namespace) -> int:
    from alkit.lab import batch

    jobs = batch.plan_sweep(options.file, threads=options.threads, timeout_s=options.timeout)
    ended = batch.sweep(jobs, options.jobs, record=options.record, force=options.force)
    states = Counter(state if state in ENDED else "failed" for _, state in ended)
    print(", ".join(f"{count} {state}" for state, count in states.items()))
    return _failures(ended)


def _failures(ended: Sequence[tuple[Any, str]]) -> int:
    failed = [(job, state) for job, state in ended if state not in ENDED]
    for job, state in failed:
        kept = f" ({os.path.relpath(job.partial)})" if job.partial.is_file() else ""
        _complain(f"{job.folder.name} failed{kept}, {state}", FAILED)
    return FAILED if failed else OK


def _results(options: argparse.Namespace) -> None:
    if options.add:
        return results.merge(options.add)
    runs = pd.DataFrame(results.rows_of(), columns=results.RUN, dtype=object)
    own = runs[runs["notebook"].map(lambda name: name.startswith(Path(options.notebook).stem))]
    if own.empty:
        raise ValueError(f"no record of that; there are: {', '.join(runs['notebook'].unique())}")
    found = own.groupby(["notebook", "preset", "commit"], sort=False).date
    print(found.agg(runs="count", first="min", last="max").to_string())


def _complain(text: str, code: int) -> int:
    print(f"alkit: {text}", file=sys.stderr)
    return code
