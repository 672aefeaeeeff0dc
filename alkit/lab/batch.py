"""Notebooks in batch by papermill, each in a process of its own, which leaves nothing running.

`CONTRIBUTING.md` lists the files in the folder of a run.
"""

import ctypes
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import papermill
from papermill.exceptions import PapermillExecutionError
from tqdm.auto import tqdm

from alkit.base import paths
from alkit.lab import parameters, results

MOST = 10_000  # points of a sweep
STEP_S = 1 if sys.stderr.isatty() else 10  # a bar shows its seconds so often


class Job(NamedTuple):
    """A checked run; its folder is where all that it writes lies."""

    notebook: Path
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


def plan(
    notebook: str | Path, preset: str, overrides: Mapping[str, Any], **options: int | None
) -> Job:
    """Check all that can be known before a run; options are `threads` and `timeout_s`."""
    path = parameters.find_notebook(notebook)
    known = parameters.parameters(path)
    values = known | ({"preset": preset} if "preset" in known else {})
    values |= parameters.preset_values(path, preset)
    values |= parameters.check(known, overrides, path.name)
    run = {"notebook": path.stem, "preset": preset, "parameters": values}
    return Job(path, values, results.folder_of(run), **options)


def plan_sweep(file: Path, **options: int | None) -> list[Job]:
    """Check all points of a sweep: a notebook, maybe a preset, and a grid or a list of points."""
    content = parameters.read_yaml(file)
    if unknown := sorted(set(content) - {"notebook", "preset", "grid", "points"}):
        raise ValueError(f"{file.name} has {', '.join(unknown)}: it takes notebook, preset, grid")
    points, grid = content.get("points", []), content.get("grid", {})
    if not all(isinstance(values, list) for values in grid.values()):
        raise ValueError(f"{file.name} has a grid of other values than lists: write [0, 1]")
    if (count := math.prod(map(len, grid.values()))) > MOST:
        raise ValueError(f"{file.name} has a grid of {count:,} points: give at most {MOST:,}")
    if grid:
        points = [dict(zip(grid, each, strict=True)) for each in itertools.product(*grid.values())]
    if not points:
        raise ValueError(f"{file.name} has no points: give a grid of lists, or a list of points")
    notebook = parameters.find_notebook(content["notebook"], file.parent, file.parent.parent)
    preset = str(content.get("preset", "smoke"))
    jobs = [plan(notebook, preset, point, **options) for point in points]
    return [*{job.folder: job for job in jobs}.values()]


def sweep(
    jobs: Sequence[Job], workers: int = 1, *, record: bool, force: bool
) -> list[tuple[Job, str]]:
    """Execute jobs, `workers` at a time; a failed one does not stop the others.

    Args:
        record: put each record into the tables when its run has ended; then a job whose record is
            in the tables has finished before.
        force: also execute jobs that have finished before.
    Returns:
        Each job with "done", "before", or the error.
    """
    recorded = {results.folder_of(run) for run in results.rows_of() if record}
    before = [] if force else [j for j in jobs if j.folder in recorded or j.target.exists()]
    ended = {job.folder: "before" for job in before}
    waiting = [job for job in jobs if job.folder not in ended]
    late = [(job, "before") for job in before if job.folder not in recorded]  # killed before that
    with tqdm(total=len(jobs), initial=len(ended), unit="run") as bar:
        running = _executed(waiting, workers, bar) if waiting else ()
        for job, state in itertools.chain(late, running):
            ended[job.folder] = state
            file = job.folder / "record.json"
            if record and state in ("done", "before") and file.exists():
                results.merge([file])  # here alone: one writer
    return [(job, ended[job.folder]) for job in jobs]


def _executed(jobs: Sequence[Job], workers: int, bar: tqdm) -> Iterator[tuple[Job, str]]:
    """Yield jobs as they end, with their outcomes; the bar shows its seconds meanwhile."""
    fresh: dict[str, Any] = {"mp_context": multiprocessing.get_context("spawn")}
    fresh |= {"max_tasks_per_child": 1, "initializer": _end_with_the_command}
    pool = ProcessPoolExecutor(workers, **fresh)
    try:
        futures = {pool.submit(execute, job): job for job in jobs}
        left = set(futures)
        while left:
            done, left = wait(left, STEP_S, "FIRST_COMPLETED")
            bar.update(len(done))
            bar.refresh()  # a sign of life
            yield from ((futures[each], each.result()) for each in done)
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()  # its kernel sees it, and ends itself
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def execute(job: Job) -> str:
    """Execute the notebook of a job in a kernel of its own; return "done", or the error."""
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    os.environ |= environment(job)
    options: dict[str, Any] = {"kernel_name": "python3", "language": "python"}
    options |= {"cwd": job.notebook.parent, "progress_bar": False}
    options |= {"start_timeout": 120, "execution_timeout": job.timeout_s}
    try:
        papermill.execute_notebook(job.notebook, job.partial, job.parameters, **options)
    except PapermillExecutionError as error:
        return f"In [{error.exec_count}]:\n{error.ename}: {error.evalue[:1000]}"
    except Exception as error:  # the kernel died, or a cell ran out of time
        return f"{type(error).__name__}: {error}"
    cells = json.loads(job.partial.read_text(encoding="utf-8"))["cells"]
    outputs = [each["output_type"] for cell in cells for each in cell.get("outputs", ())]
    if "error" in outputs:  # papermill takes SystemExit for a good end
        return "the notebook ended itself by SystemExit"
    job.partial.replace(job.target)
    return "done"


def environment(job: Job) -> dict[str, str]:
    """Return the environment variables that the kernel has beyond those of this process."""
    found = [str(paths.root()), os.environ.get("PYTHONPATH", "")]  # alkit of this checkout
    added = {results.FOLDER: str(job.folder), "PYTHONPATH": os.pathsep.join(filter(None, found))}
    added |= {"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}
    added["ALKIT_DATA"] = str(paths.shared_data_dir().absolute())  # it works in another folder
    return added


def _end_with_the_command() -> None:
    """Let this process end when the command is killed (Linux); its kernel then ends itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which decides
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what kernels print before their first cell
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
