"""The command `alkit`: notebooks and sweeps, the committed results."""

import argparse
import ast
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alkit import __version__
from alkit.base import paths
from alkit.lab import parameters, results
from alkit.lab.contents import SHELVES, contents
from alkit.lab.parameters import Parameter

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(
    arguments: Sequence[str] | None = None,
    *,
    front: Any = None,
    more: Sequence[Callable[[Any], None]] = (),
) -> int:
    """Run the command and return its exit code: 1 for a failed run, 2 for bad input.

    Args:
        front: the package, which sub-commands find as `options.front`.
        more: each adds sub-commands to the parser's.
    """
    options = _parser(more).parse_args(arguments, argparse.Namespace(front=front))
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


def _parser(more: Sequence[Callable[[Any], None]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alkit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"alkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute one notebook")
    run.add_argument("notebook", help="its path, its name or its number")
    run.add_argument("--preset", default="smoke", help="smoke (the defaults), teach, cpu, ...")
    values: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    values |= {"metavar": "NAME=VALUE", "help": "set parameters, as in -p seed=1 lr=1e-3"}
    run.add_argument("-p", dest="values", **values)
    run.add_argument("--rows", action="store_true", help="print every recorded value")
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

    listed = commands.add_parser("list", help="name the notebooks by shelf, and their presets")
    listed.set_defaults(command=_list)

    shown = commands.add_parser("results", help="summarise the committed records")
    shown.add_argument("--notebook", help="only of this notebook")
    shown.add_argument("--preset", help="only of this preset")
    shown.add_argument("--add", nargs="+", metavar="FILE", help="put these record.json there")
    shown.set_defaults(command=_results)

    for add in more:
        add(commands)
    return parser


def _list(options: argparse.Namespace) -> int:
    entries = contents()
    for shelf, heading in SHELVES.items():
        print(heading)
        for each in (each for each in entries if each.shelf == shelf):
            presets = " ".join(parameters.presets(each.path))
            print(f"  {each.name:22} {each.minutes:3} min  {each.title}  ({presets})")
    return OK


def _run(options: argparse.Namespace) -> int:
    from alkit.lab import batch  # it needs papermill

    notebook = parameters.find_notebook(options.notebook)
    overrides = _overrides(options.values, parameters.parameters(notebook))
    job = batch.plan(notebook, options.preset, overrides, timeout_s=options.timeout)
    ((_, state),) = batch.sweep([job], record=options.record, force=True)
    if state != "done":
        return _complain_of(job, state)
    rows = results.read(job.target)
    report = rows["metric"] == "report"
    for text in rows.loc[report, "value"]:
        print(text, end="\n\n")
    if options.rows:
        _print_table(rows[~report].drop(columns=["notebook", "preset", "run", *results.RUN[3:]]))
    for each in sorted([*job.folder.glob("*.png"), *job.folder.glob("*.svg")]):
        print(shutil.copy(each, paths.root() / "figures") if options.record else each)
    print(os.path.relpath(job.target))
    return OK


def _overrides(texts: Sequence[str], known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Read `name=value` texts; what is no Python literal, or no value for it, is a string."""
    overrides: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals:
            raise ValueError(f"-p {text}: write NAME=VALUE")
        try:
            value = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError):
            value = written
        # "-p data=2026" means the word where a word is wanted: the shell has eaten its quotes
        wants_text = name in known and "str" in known[name].type.split(" | ")
        overrides[name] = written if wants_text and not isinstance(value, str | None) else value
    return overrides


def _print_table(frame: Any) -> None:
    """Print a frame without the columns that say nothing."""
    text = frame.astype(object).where(frame.notna(), "")
    text = text.loc[:, (text != "").any()]
    print(text.to_string(index=False, float_format="{:.4g}".format, max_colwidth=60), end="\n\n")


def _sweep(options: argparse.Namespace) -> int:
    from alkit.lab import batch

    jobs = batch.plan_sweep(options.file, threads=options.threads, timeout_s=options.timeout)
    ended = batch.sweep(jobs, options.jobs, record=options.record, force=options.force)
    codes = [_complain_of(*each) for each in ended if each[1] not in ("done", "before")]
    states = [state if state in ("done", "before") else "failed" for _, state in ended]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return max(codes, default=OK)


def _complain_of(job: Any, state: str) -> int:
    kept = f" ({os.path.relpath(job.partial)})" if job.partial.is_file() else ""
    return _complain(f"{job.folder.name} failed{kept}, {state}", FAILED)


def _results(options: argparse.Namespace) -> int:
    if options.add:
        results.merge(options.add)
        return OK
    name, preset = options.notebook, options.preset
    if name:  # also of a notebook that is no more
        name = (parameters.find_notebook(name) if name.isdigit() else Path(name)).stem
    frame = results.load(name, preset)
    if frame.empty and (there := results.runs()):
        named = sorted({f"{run['notebook']} ({run['preset']})" for run in there})
        raise ValueError(f"no record of that; there are: {', '.join(named)}")
    for (notebook, own), part in frame.groupby(["notebook", "preset"], sort=False):
        print(f"{notebook} ({own}), commit {', '.join(sorted(set(part['commit'])))}")
        _print_table(results.summary(part).drop(columns=["notebook", "preset"]))
    return OK


def _complain(text: str, code: int) -> int:
    print(f"alkit: {text}", file=sys.stderr)
    return code
