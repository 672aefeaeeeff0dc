"""Execute checked runs of notebooks, one or many at once, each in a process of its own.

A run writes `<name>.partial.ipynb` and renames it to `<name>.ipynb` only when every cell has ended
well: what papermill stores in a notebook does not tell a finished run from one whose kernel died.
With a process for each run, its peak memory is its kernel's alone, and no process outlives it.
"""

import contextlib
import json
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import resource
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from alkit.data.extras import ExtraMissing, extra
from alkit.data.files import replacing
from alkit.records import results

__all__ = [
    "Finished",
    "Job",
    "ParameterError",
    "RunFailed",
    "attempt",
    "cells",
    "execute",
    "execute_all",
    "failed",
    "known",
    "previous",
    "table",
]

MARK = "ALKIT_RUN_ID"  # in the environment of every process of a run, to find those it left behind
INJECTED = {"injected-parameters", "papermill-error-cell-tag"}
NO_START = re.compile(r"Kernel didn't respond|Kernel died before replying to kernel_info")
STATES = ("name", "state", "seconds", "peak_mib", "path", "cell", "error")
ERROR_LINES = 6
GRACE_S = 10  # a kernel gets 5 s to end by itself
log = logging.getLogger("alkit")


class ParameterError(ValueError):
    """Bad input: a notebook, preset, sweep or value that cannot be run as asked."""


class RunFailed(RuntimeError):
    """A run that ended in an error; says where, and where the partial notebook lies."""

    def __init__(self, notebook: str, cell: int | None, error: str, partial: Path | None) -> None:
        self.notebook, self.cell, self.error, self.partial = notebook, cell, error, partial
        place = f" in cell {cell}" if cell else " before its first cell"
        kept = f"\nWhat it had done: {os.path.relpath(partial)}" if partial else ""
        super().__init__(f"{notebook} failed{place}:\n{error}{kept}")


@dataclass(frozen=True)
class Job:
    """One checked run, ready to be executed in any process."""

    notebook: Path
    preset: str
    slug: str  # of the values beyond the preset, "" without any
    values: dict[str, Any]  # what is injected
    key: str  # of the notebook's code, cells tagged `reading` left out, and all its parameters
    out_dir: Path
    record: bool
    threads: int | None
    timeout_s: int | None
    progress: bool

    @property
    def name(self) -> str:
        """The preset and the slug: the stem of the executed notebook."""
        return ".".join(filter(None, [self.preset, self.slug]))

    @property
    def target(self) -> Path:
        """Where the executed notebook lies once it is finished."""
        return self.out_dir / f"{self.name}.ipynb"

    @property
    def partial(self) -> Path:
        """Where the executed notebook lies while it runs, and after a failure."""
        return self.out_dir / f"{self.name}.partial.ipynb"


@dataclass(frozen=True)
class Finished:
    """A run that ended well; `record` is None for a notebook that records nothing."""

    path: Path
    seconds: float
    peak_mib: float
    rows: pd.DataFrame
    record: Path | None


def previous(job: Job) -> Finished | None:
    """Return the finished run of the same code and parameters, if there is one.

    A run that is to be recorded is also known by its committed record, wherever it was made; what
    was measured of that run itself is unknown then (nan).
    """
    if job.target.is_file():
        stored = json.loads(job.target.read_text(encoding="utf-8"))["metadata"].get("alkit", {})
        unrecorded = job.record and not stored.get("record")
        if stored.get("key") == job.key and not unrecorded:
            return _finished(job, stored["seconds"], stored["peak_mib"])
    record = results.record_path(job.notebook.stem, job.preset, job.slug, committed=True)
    if not job.record or results.key_of(record) != job.key:
        return None
    return Finished(record, math.nan, math.nan, results.read(record), record)


def execute(job: Job, stop: threading.Event | None = None) -> Finished:
    """Execute a job and return when it has ended and none of its processes is left.

    Args:
        stop: set from another thread, ends the run with a CancelledError.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # a run started from inside a run belongs to both, hence the prefix
    run_id = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"
    process = context.Process(target=_in_process, args=(job, run_id, sender), daemon=True)
    try:
        process.start()
        sender.close()
        answer = _answer(receiver, stop)
        process.join(GRACE_S)
    finally:
        _end(process, run_id)
        receiver.close()
    if "error" in answer:
        error = answer["error"] or f"its process ended unasked (exit code {process.exitcode})"
        partial = job.partial if job.partial.is_file() else None
        raise RunFailed(job.notebook.name, _failing_cell(job.partial), error, partial)
    log.info("%s %s: %.1f s, peak %.0f MiB", job.notebook.stem, job.name, *answer.values())
    return _finished(job, **answer)


def execute_all(
    jobs: Sequence[Job], workers: int = 2, *, force: bool = False, progress: bool = True
) -> pd.DataFrame:
    """Execute jobs, `workers` at a time; a failed one does not stop the others.

    Args:
        force: also execute those that a finished run of the same code and parameters stands for.
    Returns: one row a job in their order, with the columns name, state (done, before, failed),
        seconds, peak_mib, path (of the partial notebook, if failed), cell and error.
    """
    stop = threading.Event()
    rows: dict[str, dict[str, Any]] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(attempt, job, stop, force) for job in jobs]
        with _quiet_log(progress):
            done = tqdm(as_completed(futures), total=len(jobs), unit="run", disable=not progress)
            rows.update((future.result()["name"], future.result()) for future in done)
    finally:  # after an interrupt the threads end their runs before this returns
        stop.set()
        pool.shutdown(cancel_futures=True)
    return table(rows, jobs)


def table(rows: Mapping[str, dict[str, Any]], jobs: Sequence[Job]) -> pd.DataFrame:
    """Return the rows of jobs, which stand by their names, in the order of the jobs."""
    return pd.DataFrame([rows[job.name] for job in jobs], columns=STATES)


def attempt(job: Job, stop: threading.Event, force: bool) -> dict[str, Any]:
    """Return the row of a job that is executed, unless it has been and is not to be again."""
    before = None if force else known(job)
    try:
        return before or _row(job, "done", execute(job, stop))
    except RunFailed as error:
        return failed(job, error.error, error.cell)


def known(job: Job) -> dict[str, Any] | None:
    """Return the row of a job that has finished before; None of another."""
    before = previous(job)
    return None if before is None else _row(job, "before", before)


def failed(job: Job, error: str, cell: int | None = None) -> dict[str, Any]:
    """Return the row of a job that has failed."""
    partial = job.partial if job.partial.is_file() else None
    row = dict.fromkeys(STATES) | {"name": job.name, "state": "failed"}
    return row | {"path": partial, "cell": cell, "error": error}


def _row(job: Job, state: str, ended: Finished) -> dict[str, Any]:
    measured = {"seconds": ended.seconds, "peak_mib": ended.peak_mib, "path": ended.path}
    return dict.fromkeys(STATES) | {"name": job.name, "state": state} | measured


def _quiet_log(progress: bool) -> contextlib.AbstractContextManager[None]:
    """Write log lines above the progress bar, not into it."""
    return logging_redirect_tqdm() if progress else contextlib.nullcontext()


def _answer(receiver: Connection, stop: threading.Event | None) -> dict[str, Any]:
    """Wait for what the run's process says; an empty error if it ends without a word."""
    while not receiver.poll(0.2):
        if stop is not None and stop.is_set():
            raise CancelledError
    try:
        return json.loads(receiver.recv_bytes())
    except EOFError:
        return {"error": ""}


def _end(process: BaseProcess, run_id: str) -> None:
    """End a run's process, which takes its kernel with it, then whatever is left of the run."""
    if process.is_alive():
        process.terminate()
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
        process.join()
    _kill_left_behind(run_id)


def _kill_left_behind(run_id: str) -> None:
    left = [process for process in psutil.process_iter() if _belongs(process, run_id)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_S)


def _belongs(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.environ().get(MARK, "").startswith(run_id)
    except psutil.Error:  # somebody else's, or gone
        return False


def _in_process(job: Job, run_id: str, sender: Connection) -> None:
    """Be the process of one run: execute it and send the parent what became of it."""
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal's Ctrl-C: the parent decides
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(_environment(job, run_id))
    # what papermill warns of is checked before, and what it logs as an error is raised as well
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        answer: dict[str, Any] = _measure(job)
    except Exception as error:
        answer = {"error": _explain(error, job)}
    finally:
        _kill_left_behind(run_id)
    sender.send_bytes(json.dumps(answer).encode())


def _leave(*_: Any) -> None:
    """End when asked to; the cell's task finds its kernel dead then, and nobody will ask it."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it says so in a traceback
    sys.exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _environment(job: Job, run_id: str) -> dict[str, str]:
    """Return what the kernel's environment has beyond this process's."""
    home = Path(__file__).resolve().parents[2]
    added = {MARK: run_id, "ALKIT_RUN_SLUG": job.slug, "ALKIT_RUN_KEY": job.key}
    added["ALKIT_RECORD"] = "1" if job.record else ""
    if job.threads is not None:
        added["OMP_NUM_THREADS"] = str(job.threads)
    if data := os.environ.get("ALKIT_DATA"):  # the kernel works in another folder
        added["ALKIT_DATA"] = str(Path(data).expanduser().absolute())
    if (home / "pyproject.toml").is_file():  # this checkout's alkit, whatever is installed
        before = os.environ.get("PYTHONPATH")
        added["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), before]))
    return added


def _measure(job: Job) -> dict[str, float]:
    """Execute the notebook, rename it, and return seconds and peak memory."""
    with extra("notebooks", "a run"):
        import nbformat

    job.out_dir.mkdir(parents=True, exist_ok=True)
    job.partial.unlink(missing_ok=True)
    start = time.perf_counter()
    notebook = _papermill(job)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**20
    answer = {"seconds": time.perf_counter() - start, "peak_mib": peak}
    notebook.metadata["alkit"] = {"key": job.key, "record": job.record, **answer}
    # not by way of the partial notebook: a run of the same point whose worker was lost may write
    # what it had done into that while it ends
    with replacing(job.target) as own:
        nbformat.write(notebook, own)
    job.partial.unlink(missing_ok=True)
    return answer


def _papermill(job: Job) -> Any:
    """Call papermill, once more if only the kernel did not start; return the notebook."""
    with extra("notebooks", "a run"):
        import papermill
        from nbclient.exceptions import DeadKernelError

    exit_codes: list[int] = []
    options = {
        "parameters": job.values,
        "kernel_name": "python3",
        "language": "python",
        "cwd": str(job.notebook.parent),
        "progress_bar": {"desc": job.notebook.stem} if job.progress else False,
        "start_timeout": 120,
        "iopub_timeout": 60,
        "execution_timeout": job.timeout_s,
        # keeps the kernel's line about TCP without encryption, and what it says when it is ended
        # in the middle of a cell, off the terminal
        "extra_arguments": ["--IPKernelApp.log_level=50"],
        "kernel_manager_class": _watched_manager(exit_codes),
    }
    for attempt in (1, 2):
        try:
            return papermill.execute_notebook(str(job.notebook), str(job.partial), **options)
        except DeadKernelError as error:
            code = f"exit code {exit_codes[-1]}; -9 mostly means that memory ran out"
            raise ChildProcessError(f"the kernel died ({code})") from error
        except RuntimeError as error:
            if attempt == 2 or not NO_START.search(str(error)):
                raise
    raise AssertionError("the second attempt returns or raises")


def _watched_manager(exit_codes: list[int]) -> type:
    """Return a class of kernel managers that note down the exit code of a kernel found dead."""
    from jupyter_client.manager import AsyncKernelManager

    class Watched(AsyncKernelManager):
        async def is_alive(self) -> bool:  # type: ignore[override]
            code = await self.provisioner.poll() if self.provisioner and self.has_kernel else None
            exit_codes.extend([] if code is None else [code])
            return await self._async_is_alive()

    return Watched


def _explain(error: Exception, job: Job) -> str:
    """Return the last lines of what went wrong, without colours."""
    if isinstance(error, ExtraMissing):
        return str(error)
    from nbclient.exceptions import CellTimeoutError

    if isinstance(error, CellTimeoutError):
        return f"the cell ran longer than its limit of {job.timeout_s} s"
    text = "\n".join(getattr(error, "traceback", ())) or f"{type(error).__name__}: {error}"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return "\n".join([line for line in lines if line.strip()][-ERROR_LINES:])


def _failing_cell(partial: Path) -> int | None:
    """Return the number, in the notebook as its author wrote it, of the last cell begun."""
    try:
        own = [c for c in cells(partial) if not INJECTED & set(c["metadata"].get("tags", ()))]
    except ParameterError:  # killed before, or while, it was written
        return None
    begun = [c["metadata"].get("papermill", {}).get("start_time") is not None for c in own]
    return max((number for number, was in enumerate(begun, 1) if was), default=None)


def _finished(job: Job, seconds: float, peak_mib: float) -> Finished:
    rows = results.read(job.target)
    record = None
    if len(rows):
        first = rows.iloc[0]
        named = first["notebook"], first["preset"], first["slug"]
        record = results.record_path(*named, committed=job.record)
    return Finished(job.target, seconds, peak_mib, rows, record)


def cells(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path.name} is no notebook: {error!r}") from error
