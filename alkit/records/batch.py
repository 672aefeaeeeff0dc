"""Notebooks in batch by papermill, each in a process of its own, which leaves nothing running.

runs/<name>/NOTEBOOK.partial.ipynb    while it runs, and after a failure
runs/<name>/NOTEBOOK.ipynb            once every cell has ended well
runs/<name>/record.json               what it has recorded
runs/<name>/NAME.png, NAME.svg        its figures
"""

import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill import engines
from tqdm.auto import tqdm

from alkit.data import paths
from alkit.records import parameters, tables
from alkit.records.parameters import ParameterError
from alkit.records.recording import FOLDER, GIVEN

TQDM = ["HTMLModel", "FloatProgressModel", "HTMLModel"]  # words, bar, words
INJECTED = {"injected-parameters", "papermill-error-cell-tag"}


@dataclass(frozen=True)
class Job:
    """A checked run; its folder is where all that it writes lies."""

    notebook: Path
    preset: str
    parameters: dict[str, Any]
    folder: Path
    threads: int | None = None
    timeout_s: int | None = None

    @property
    def target(self) -> Path:
        """The executed notebook, once it is finished; until then it is `partial`."""
        return self.folder / self.notebook.name

    @property
    def partial(self) -> Path:
        """The executed notebook while it runs, and after a failure."""
        return self.target.with_suffix(".partial.ipynb")


@dataclass(frozen=True)
class Result:
    """What became of a job."""

    job: Job
    state: str  # done, before, failed
    run: str | None = None  # in the tables, if it was known by them
    cell: int | None = None  # the one that failed, counted from 1
    error: str = ""


def plan(
    notebook: str | Path, preset: str, overrides: Mapping[str, Any], **options: int | None
) -> Job:
    """Check everything that can be known before a run; options are `threads` and `timeout_s`."""
    path = parameters.find_notebook(notebook)
    if wrong := [f"{k} is {v}" for k, v in options.items() if v is not None and v < 1]:
        raise ParameterError(f"{' and '.join(wrong)}: give 1 or more")
    known = parameters.parameters(path)
    values = {name: one.default for name, one in known.items()}
    values |= {"preset": preset} if "preset" in known else {}
    values |= parameters.preset_values(path, preset)
    values |= parameters.check(known, overrides, path.name)
    changed = parameters.slug(parameters.changes(path, preset, values))
    name = ".".join(filter(None, [path.stem, preset, changed]))
    return Job(path, preset, values, paths.runs_dir() / name, **options)


def plan_sweep(file: Path, **options: int | None) -> list[Job]:
    """Check all points of a sweep file: a notebook, maybe a preset, and a grid or points."""
    content = parameters.read_yaml(file)
    named = sorted(map(str, set(content) - {"preset"}))
    points, grid = content.get("points"), content.get("grid")
    if named == ["grid", "notebook"] and isinstance(grid, dict):
        lists = [each if isinstance(each, list) else [] for each in grid.values()]
        points = [dict(zip(grid, each, strict=True)) for each in itertools.product(*lists)]
    elif named != ["notebook", "points"] or not isinstance(points, list):
        points = []
    if not points or not all(isinstance(point, dict) for point in points):
        raise ParameterError(
            f"{file.name} needs a notebook, maybe a preset, and either a grid of `name: [value, "
            f"value]` or points, a list of {{name: value}}; it has {', '.join(map(str, content))}"
        )
    notebook = parameters.find_notebook(content["notebook"], file.parent, file.parent.parent)
    jobs = [plan(notebook, str(content.get("preset", "smoke")), each, **options) for each in points]
    names = [job.folder.name for job in jobs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ParameterError(f"{file.name} has a point twice: {', '.join(sorted(twice))}")
    return jobs


def execute_all(
    jobs: Sequence[Job], workers: int = 1, *, record: bool, force: bool, cells: bool = False
) -> list[Result]:
    """Execute jobs, `workers` at a time; a failed one does not stop the others.

    Args:
        record: put each record into the tables when its run has ended; then a job whose record is
            in the tables has finished before.
        force: also execute jobs that have finished before.
        cells: show a bar of each run's cells instead of one of runs.
    """
    recorded = tables.known() if record and not force else {}
    results, waiting = dict[Path, Result](), list[Job]()
    for job in jobs:
        run = recorded.get(tables.key(job.notebook.stem, job.preset, job.parameters))
        if run or not force and _has_finished(job):
            results[job.folder] = _kept(Result(job, "before", run), record and not run)
        else:
            waiting.append(job)
    stop, pool = threading.Event(), ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(_execute, job, stop, cells) for job in waiting]
        done = {"total": len(jobs), "initial": len(results), "unit": "run", "disable": cells}
        for future in tqdm(as_completed(futures), **done):
            result = future.result()
            results[result.job.folder] = _kept(result, record)
    finally:  # after an interrupt the runs are ended before this returns
        stop.set()
        pool.shutdown(cancel_futures=True)
    return [results[job.folder] for job in jobs]


def _has_finished(job: Job) -> bool:
    text = job.target.read_text(encoding="utf-8") if job.target.is_file() else ""
    return bool(text) and json.loads(text)["metadata"]["papermill"]["parameters"] == job.parameters


def _kept(result: Result, record: bool) -> Result:
    """Put the record of a finished run into the tables, if it is to be there."""
    file = result.job.folder / "record.json"
    if record and result.state != "failed" and file.is_file():
        tables.merge([file])
    return result


def _execute(job: Job, stop: threading.Event, shown: bool) -> Result:
    """Execute a job in a process of its own, which ends when `stop` is set."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, shown, sender))
    process.start()
    sender.close()
    while process.is_alive() and not receiver.poll(0.2) and not stop.is_set():
        pass
    if stop.is_set():
        process.terminate()
    try:
        result = receiver.recv()  # before the join: a process ends when all that it says is read
    except EOFError:
        result = None
    process.join()
    error = f"its process ended unasked (exit code {process.exitcode})"
    return result or Result(job, "failed", error=error)


def _work(job: Job, shown: bool, sender: Connection) -> None:
    """Execute a job in this process, and send what became of it."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which decides
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ends = (parent_process(), threading.get_ident())
    threading.Thread(target=_end_with_the_command, args=ends, daemon=True).start()
    os.environ |= environment(job)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    engines.PapermillNotebookClient = _Client  # papermill has no parameter for it
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    named = {"kernel_name": "python3", "language": "python", "cwd": job.notebook.parent}
    limits = {"start_timeout": 120, "execution_timeout": job.timeout_s}
    bar = {"desc": job.notebook.stem} if shown else False
    failure = None
    try:
        papermill.execute_notebook(
            job.notebook, job.partial, job.parameters, progress_bar=bar, **named, **limits
        )
    except Exception as error:
        failure = error
    except KeyboardInterrupt:
        return
    sender.send(_result(job, failure))


def _end_with_the_command(command: BaseProcess, main_thread: int) -> None:
    """End this process when the command has ended, however; the kernel ends with this one."""
    command.join()
    signal.pthread_kill(main_thread, signal.SIGTERM)


def environment(job: Job) -> dict[str, str]:
    """Return what the kernel's environment has beyond this process's."""
    home = Path(__file__).resolve().parents[2]  # this checkout's alkit, whatever is installed
    found = [str(home)] * (home / "pyproject.toml").is_file()
    found += filter(None, [os.environ.get("PYTHONPATH")])
    added = {FOLDER: str(job.folder), GIVEN: json.dumps(job.parameters)}
    added |= {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # Agg shows no figure
    added |= {"PYTHONPATH": os.pathsep.join(found)} if found else {}
    added |= {"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}
    if data := os.environ.get("ALKIT_DATA"):  # the kernel works in another folder
        added["ALKIT_DATA"] = str(Path(data).expanduser().absolute())
    return added


def _result(job: Job, failure: Exception | None) -> Result:
    """Return what the executed notebook and papermill's exception say of a run."""
    cells = json.loads(job.partial.read_text(encoding="utf-8"))["cells"]
    own = [cell for cell in cells if not INJECTED & set(cell["metadata"].get("tags", ()))]
    begun = [at for at, c in enumerate(own, 1) if c["metadata"]["papermill"]["start_time"]]
    outputs = [output for cell in own for output in cell.get("outputs", ())]
    errors = [output for output in outputs if output["output_type"] == "error"]
    if failure is None and not errors:
        job.partial.replace(job.target)
        return Result(job, "done")
    said = "\n".join(errors[-1]["traceback"]) if errors else f"{failure!r}"
    if isinstance(failure, CellTimeoutError):
        said = f"the cell ran longer than its limit of {job.timeout_s} s"
    elif isinstance(failure, DeadKernelError):
        said = "the kernel died; mostly because memory ran out"
    elif failure is None:  # papermill takes it for a good end
        said = f"the notebook ended itself: SystemExit {errors[-1]['evalue']}"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    text = "\n".join([line for line in lines if line.strip()][-6:])
    return Result(job, "failed", cell=max(begun, default=None), error=text)


class _Client(engines.PapermillNotebookClient):
    """Says on the bar of cells what the newest bar inside of the running cell says."""

    def setup_kernel(self, **options: Any) -> Any:
        return super().setup_kernel(stderr=subprocess.DEVNULL, **options)

    def papermill_execute_cells(self) -> None:
        ended = threading.Event()
        threading.Thread(target=_tick, args=(self.nb_man.pbar, ended), daemon=True).start()
        try:
            super().papermill_execute_cells()
        except KeyboardInterrupt:
            self.shutdown_kernel = "immediate"
            raise
        finally:
            ended.set()

    def execute_cell(self, *arguments: Any) -> None:
        self._say("")
        super().execute_cell(*arguments)

    def handle_comm_msg(self, outs: Any, msg: Any, cell_index: int) -> None:
        super().handle_comm_msg(outs, msg, cell_index)
        for box in self.widget_state.values():
            ids = [str(child).removeprefix("IPY_MODEL_") for child in box.get("children", ())]
            parts = [self.widget_state.get(each, {}) for each in ids]
            kinds = [part.get("_model_name") for part in parts]
            if kinds == TQDM and ids[2] == msg["content"]["comm_id"]:
                left, right = (parts[at].get("value", "") for at in (0, 2))
                words = f"{left.partition(':')[0]} {right.partition('[')[0]}"
                self._say(" ".join(words.split()))

    def _say(self, words: str) -> None:
        if self.nb_man.pbar is not None:
            self.nb_man.pbar.set_postfix_str(words, refresh=False)


def _tick(bar: tqdm | None, ended: threading.Event) -> None:
    while bar is not None and not ended.wait(1 if sys.stderr.isatty() else 10):
        bar.refresh()
