"""Execute many runs, some at a time; several commands may be at the same ones.

    command A ──► takes a job ──► lock of its run ──► done before? ──► execute ──┐
    command B ──► ...               held: later                                  ├──► merge
                                                                  tables ◄───────┘

Whichever command takes a job, it is executed once and merged once.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from alkit.records import tables
from alkit.records.execution import POLL_S, Busy, Job, RunFailed, alone, done_before, execute

STATES = ("name", "run", "state", "seconds", "peak_mib", "path", "cell", "error")


def execute_all(
    jobs: Sequence[Job], workers: int = 2, *, force: bool = False, progress: bool = True
) -> pd.DataFrame:
    """Execute jobs, `workers` at a time; a failed one does not stop the others.

    What is to be recorded is in the tables when this returns, also after an interrupt.

    Args:
        force: also execute those that a finished run of the same parameters stands for.
    Returns: one row a job in their order, with the columns name, run (in the tables), state (done,
        before, failed), seconds, peak_mib, path (of the partial notebook, if failed; none of what
        is known by the tables), cell and error.
    """
    recorded = {} if force or not any(job.record for job in jobs) else tables.known()
    rows = {
        job.name: _row(job, "before", run=recorded[job.key])
        for job in jobs
        if job.record and job.key in recorded
    }
    waiting = deque(job for job in jobs if job.name not in rows)
    stop = threading.Event()
    pool = ThreadPoolExecutor(workers)
    try:
        with _progress(len(jobs), len(rows), progress) as bar:
            futures = [pool.submit(_work, waiting, rows, stop, force, bar) for _ in range(workers)]
            for future in futures:
                future.result()
    finally:  # after an interrupt the threads end their runs before this returns
        stop.set()
        pool.shutdown(cancel_futures=True)
        done = [job for job in jobs if job.record and _is_new(rows.get(job.name))]
        tables.merge(file for job in done if (file := job.folder / "record.json").is_file())
    return pd.DataFrame([rows[job.name] for job in jobs], columns=STATES)


def _work(
    waiting: deque[Job], rows: dict[str, Any], stop: threading.Event, force: bool, bar: tqdm
) -> None:
    """Take jobs until none is left; what another process is at comes again at the end."""
    while not stop.is_set():
        try:
            job = waiting.popleft()
        except IndexError:
            return
        try:
            rows[job.name] = _attempt(job, stop, force)
            bar.update()
        except Busy:
            waiting.append(job)
            stop.wait(POLL_S)


def _attempt(job: Job, stop: threading.Event, force: bool) -> dict[str, Any]:
    """Return the row of a job that is executed, unless it has been and is not to be again."""
    with alone(job):
        if not force and (before := done_before(job)):
            return _row(job, "before", **before, path=job.target)
        try:
            return _row(job, "done", **execute(job, stop), path=job.target)
        except RunFailed as error:
            own = {"path": error.partial, "cell": error.cell, "error": error.error}
            return _row(job, "failed", **own)


def _row(job: Job, state: str, **words: Any) -> dict[str, Any]:
    return dict.fromkeys(STATES) | {"name": job.name, "run": job.run, "state": state} | words


def _is_new(row: Mapping[str, Any] | None) -> bool:
    """Tell a run that the tables may lack."""
    return row is not None and row["state"] != "failed" and row["path"] is not None


@contextlib.contextmanager
def _progress(total: int, done: int, shown: bool) -> Iterator[tqdm]:
    """Show a bar, and write log lines above it, not into it."""
    bar = tqdm(total=total, initial=done, unit="run", disable=not shown)
    with bar, logging_redirect_tqdm() if shown else contextlib.nullcontext():
        yield bar
