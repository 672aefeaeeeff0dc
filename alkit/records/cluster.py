"""A sweep on a Dask cluster: points go to workers, and each runs there as it would here.

    caller       plan, check | submit -------------------------> rows
    scheduler                | the points of a lost worker again, a few times
    worker                   | check, `execute` in a process of its own -> runs/, notebooks/results/

Jobs and rows travel, pickled: whoever can talk to the scheduler can run code on all its workers, so
its address must be trusted. Notebooks, runs and records do not travel: all machines share a file
system, which is looked at before anything runs.
"""

import functools
import hashlib
import json
import logging
import multiprocessing
import platform
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from alkit.data.extras import extra
from alkit.records.execution import Job, ParameterError, attempt, cells, failed, known, table

__all__ = ["MARK", "Place", "check", "execute_on", "marked"]

MARK = ".sweep-"  # begins the name of a file that is there while a sweep runs
log = logging.getLogger("alkit")


@dataclass(frozen=True)
class Place:
    """What a worker must see as the caller does."""

    notebook: Path
    mark: Path  # a file in the folder of the executed notebooks
    digest: str  # of the package and the notebook's code


def execute_on(
    address: str, jobs: Sequence[Job], *, force: bool = False, progress: bool = True
) -> pd.DataFrame:
    """Execute jobs of one notebook on the workers of a Dask scheduler, one a thread of theirs.

    The points of a worker that is lost run again on others, as often as the scheduler allows
    (`distributed.scheduler.allowed-failures`, 3), then they are rows that failed. An interrupt ends
    what runs.

    Args:
        address: of the scheduler, as in "tcp://10.0.0.5:8786"; it must be trusted.
        force: as in `execute_all`, which says what is returned, too.
    Raises:
        ParameterError: a worker has other files than the caller.
        OSError: there is no scheduler; a ConnectionError if it has gone.
    """
    rows = {job.name: row for job in jobs if not force and (row := known(job))}
    waiting = [job for job in jobs if job.name not in rows]
    if waiting:
        with extra("dask", "a sweep on a cluster"):
            from distributed import Client
        with marked(waiting[0]) as place, Client(address) as client:
            # who comes later is looked at in its first point
            for worker, why in client.run(check, place, on_error="return").items():
                if why is not None:
                    raise ParameterError(f"the worker {worker} is refused: {why}")
            log.info("%s: %d threads of workers", address, sum(client.nthreads().values()))
            rows |= _rows(client, waiting, place, force, progress)
    return table(rows, jobs)


def _rows(
    client: Any, jobs: Sequence[Job], place: Place, force: bool, progress: bool
) -> dict[str, dict[str, Any]]:
    from distributed import Event, as_completed, wait

    stop = Event(client=client)
    given = {client.submit(_point, job, place, stop, force, pure=False): job for job in jobs}
    try:
        done = tqdm(as_completed(given), total=len(given), unit="run", disable=not progress)
        return {given[future].name: _row(future, given[future]) for future in done}
    except CancelledError as error:
        said = f"the scheduler at {client.scheduler.address} has gone, and its workers with it"
        raise ConnectionError(f"{said}: call again for the points that are left") from error
    except BaseException:  # no run is left behind, and none that waits begins
        stop.set()
        under_way = {key for keys in client.processing().values() for key in keys}
        wait([future for future in given if future.key in under_way])
        raise


def _row(future: Any, job: Job) -> dict[str, Any]:
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        lost = f"it has lost {error.allowed_failures + 1} workers, the last at"
        why = "has its memory or its time run out? Their logs may say more"
        return failed(job, f"{lost} {error.last_worker.address}: {why}")


def _point(job: Job, place: Place, stop: Any, force: bool) -> dict[str, Any]:
    """Run a point, on a worker."""
    check(place)
    if stop.is_set():
        raise CancelledError
    # a nanny's worker is a daemon, which may have no children; a run is one, and ends with it
    multiprocessing.current_process().daemon = False
    return attempt(job, stop, force)


@contextmanager
def marked(job: Job) -> Iterator[Place]:
    """Mark the folder of the executed notebooks, and give what is to be seen elsewhere."""
    job.out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=job.out_dir, prefix=MARK) as mark:
        yield Place(job.notebook, Path(mark.name), _digest(job.notebook))


def check(place: Place) -> None:
    """See that this machine has the files that the caller has.

    Raises:
        ParameterError: it hasn't; says which machine, and what to do.
    """
    who = f"the machine {platform.node()}"
    if not place.mark.is_file():
        raise ParameterError(
            f"{who} does not see {place.mark.parent} as it is here: call from a folder on a file"
            " system that all machines share"
        )
    if _digest(place.notebook) != place.digest:
        raise ParameterError(
            f"{who} has another alkit or another {place.notebook.name}: start it from this"
            " checkout, and leave both as they are while a sweep runs"
        )


def _digest(notebook: Path) -> str:
    code = ["".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code"]
    return hashlib.sha256(_package() + json.dumps(code).encode()).hexdigest()


@functools.cache
def _package() -> bytes:
    """Return a digest of the sources that this process has been started with."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()
