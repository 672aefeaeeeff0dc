"""Execute a checked run by papermill's own command.

    runs/<name>/NOTEBOOK.partial.ipynb    while it runs, and after a failure
    runs/<name>/NOTEBOOK.ipynb            once every cell has ended well
    runs/<name>/record.json               what it has recorded
    runs/<name>/NAME.png, NAME.svg        its figures

With a process of its own, a run's peak memory is its kernel's alone; beside it waits a reaper, so
that no process outlives it.
"""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import yaml
from tqdm.auto import tqdm

from alkit.data import paths
from alkit.data.extras import extra
from alkit.data.files import locked, replacing
from alkit.records import tables
from alkit.records.parameters import ParameterError, cells
from alkit.records.reaper import MARK
from alkit.records.recording import FOLDER, GIVEN
from alkit.records.strict import read_json

PAPERMILL = [sys.executable, "-m", "papermill"]
# A process's peak counts what it was before its exec, so something small starts the command.
SMALL = """import os, subprocess, sys
command = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, usage = os.wait4(command.pid, 0)
print(usage.ru_maxrss / 1024, flush=True)
code = os.waitstatus_to_exitcode(status)
sys.exit(code) if code >= 0 else os.kill(os.getpid(), -code)"""
INJECTED = {"injected-parameters", "papermill-error-cell-tag"}
NO_START = re.compile(r"Kernel didn't respond|Kernel died before replying to kernel_info")
BAR = re.compile(r"[^\r\n]*\r")  # papermill's bars of progress
ERROR_LINES = 6
POLL_S = 0.2
log = logging.getLogger("alkit")


class RunFailed(RuntimeError):
    """A run that ended in an error; says where, and where the partial notebook lies."""

    def __init__(self, notebook: str, cell: int | None, error: str, partial: Path | None) -> None:
        self.notebook, self.cell, self.error, self.partial = notebook, cell, error, partial
        place = f" in cell {cell}" if cell else " before its first cell"
        kept = f"\nWhat it had done: {os.path.relpath(partial)}" if partial else ""
        super().__init__(f"{notebook} failed{place}:\n{error}{kept}")


class Busy(RuntimeError):
    """Another process is at this very run; says which."""


@dataclass(frozen=True)
class Job:
    """One checked run, ready to be executed in any process."""

    notebook: Path
    preset: str
    slug: str  # of the values that are not the preset's, "" without any
    values: dict[str, Any]  # what is injected
    parameters: dict[str, Any]  # all of them
    record: bool
    threads: int | None
    timeout_s: int | None
    progress: bool

    @property
    def name(self) -> str:
        """The preset and the slug."""
        return ".".join(filter(None, [self.preset, self.slug]))

    @property
    def run(self) -> str:
        """What it is known by in the tables."""
        return tables.identity(self.notebook.stem, self.preset, self.parameters)

    @property
    def key(self) -> str:
        """What tells whether it has been before."""
        return tables.key(self.notebook.stem, self.preset, self.parameters)

    @property
    def folder(self) -> Path:
        """Where all that it writes lies."""
        return paths.runs_dir() / f"{self.notebook.stem}.{self.name}"

    @property
    def target(self) -> Path:
        """Where the executed notebook lies once it is finished."""
        return self.folder / self.notebook.name

    @property
    def partial(self) -> Path:
        """Where the executed notebook lies while it runs, and after a failure."""
        return self.target.with_suffix(".partial.ipynb")


@contextlib.contextmanager
def alone(job: Job) -> Iterator[None]:
    """Let no other process execute this job meanwhile.

    Raises:
        Busy: one does.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(job.folder / "run"))
        except RuntimeError as error:
            raise Busy(str(error)) from error
        yield


def done_before(job: Job) -> dict[str, float] | None:
    """Return seconds and peak memory of a finished run of the same parameters on this disk.

    A run that was not to be recorded doesn't stand for one that is.
    """
    if not job.target.is_file():
        return None
    stored = read_json(job.target)["metadata"].get("alkit", {})
    if stored.get("parameters") != job.parameters or (job.record and not stored["record"]):
        return None
    return {name: stored[name] for name in ("seconds", "peak_mib")}


def figures_of(folder: Path) -> list[Path]:
    """Return the figures that a run has left in its folder."""
    return sorted(path for path in folder.glob("*") if path.suffix in (".png", ".svg"))


def execute(job: Job, stop: threading.Event | None = None) -> dict[str, float]:
    """Execute a job; return its seconds and peak memory when none of its processes is left.

    Args:
        stop: set from another thread, ends the run with a CancelledError.
    Raises:
        RunFailed: a cell raised, ran out of time or ended the kernel.
    """
    with extra("notebooks", "a run"):
        if find_spec("papermill") is None:
            raise ModuleNotFoundError("No module named 'papermill'", name="papermill")
    job.folder.mkdir(parents=True, exist_ok=True)
    for old in (job.target, job.partial, job.folder / "record.json", *figures_of(job.folder)):
        old.unlink(missing_ok=True)
    start = time.perf_counter()
    code, said, peak_mib = _papermill(job, stop)
    if code and NO_START.search(said):  # seen on busy machines
        code, said, peak_mib = _papermill(job, stop)
    if code or not _is_complete(job.partial):
        partial = job.partial if job.partial.is_file() else None
        raise RunFailed(job.notebook.name, *_why(job, code, said), partial)
    measured = {"seconds": time.perf_counter() - start, "peak_mib": peak_mib}
    book = read_json(job.partial)
    book["metadata"]["alkit"] = {"parameters": job.parameters, "record": job.record, **measured}
    with replacing(job.target) as own:
        own.write_text(json.dumps(book, ensure_ascii=False, indent=1), encoding="utf-8")
    job.partial.unlink()
    log.info("%s %s: %.1f s, peak %.0f MiB", job.notebook.stem, job.name, *measured.values())
    return measured


def _papermill(job: Job, stop: threading.Event | None) -> tuple[int, str, float]:
    """Run papermill's command; return exit code, what it said, and its peak memory in MiB."""
    command = [*PAPERMILL, str(job.notebook), str(job.partial), "--cwd", str(job.notebook.parent)]
    command += ["--kernel", "python3", "--language", "python", "--log-level", "CRITICAL"]
    command += ["--start-timeout", "120", "--parameters_yaml", yaml.safe_dump(job.values)]
    command += ["--execution-timeout", str(job.timeout_s)] if job.timeout_s else []
    # a run started from inside a run belongs to both, hence the prefix
    run_id = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"
    env = os.environ | environment(job, run_id)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as peak, _reaped(run_id):
        process = subprocess.Popen(
            [sys.executable, "-c", SMALL, *command],
            stdin=subprocess.DEVNULL,
            stdout=peak,
            stderr=said,
            env=env,
            start_new_session=True,  # a Ctrl-C is for this process, which decides
        )
        try:
            _wait(process, said, stop, job)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        text = os.pread(said.fileno(), 10**6, 0).decode(errors="replace")
        peak_mib = float(os.pread(peak.fileno(), 100, 0) or "nan")
    return process.returncode, BAR.sub("", text), peak_mib


def _wait(
    process: subprocess.Popen[bytes], said: IO[bytes], stop: threading.Event | None, job: Job
) -> None:
    """Wait for the command and show its progress."""
    with tqdm(desc=job.notebook.stem, unit="cell", disable=not job.progress) as bar:
        while True:
            ended = process.poll() is not None
            size = os.fstat(said.fileno()).st_size
            shown = os.pread(said.fileno(), 300, max(0, size - 300))
            for done, total in re.findall(rb"(\d+)/(\d+) \[", shown)[-1:]:
                bar.total = int(total)
                bar.update(int(done) - bar.n)
            if ended:
                return
            if stop is not None and stop.is_set():
                raise CancelledError
            time.sleep(POLL_S)


@contextlib.contextmanager
def _reaped(run_id: str) -> Iterator[None]:
    """Have a process beside the run that ends what is left of it, should this one be killed too."""
    command = [sys.executable, "-m", "alkit.records.reaper", run_id]
    reaper = subprocess.Popen(
        command, stdin=subprocess.PIPE, env=os.environ | _home(), start_new_session=True
    )
    assert reaper.stdin is not None
    try:
        yield
    finally:
        reaper.stdin.close()
        reaper.wait()


def environment(job: Job, run_id: str) -> dict[str, str]:
    """Return what the kernel's environment has beyond this process's."""
    added = {MARK: run_id, FOLDER: str(job.folder), GIVEN: json.dumps(job.parameters)}
    added |= {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # Agg shows no figure
    if job.threads is not None:
        added["OMP_NUM_THREADS"] = str(job.threads)
    if data := os.environ.get("ALKIT_DATA"):  # the kernel works in another folder
        added["ALKIT_DATA"] = str(Path(data).expanduser().absolute())
    return added | _home()


def _home() -> dict[str, str]:
    """Let a process have this checkout's alkit, whatever is installed."""
    home = Path(__file__).resolve().parents[2]
    if not (home / "pyproject.toml").is_file():
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(home), before]))}


def _is_complete(partial: Path) -> bool:
    """Tell a notebook whose cells have all been executed from one that `sys.exit(0)` has ended."""
    made = [cell for cell in cells(partial) if cell["cell_type"] == "code"]
    states = {cell["metadata"].get("papermill", {}).get("status") for cell in made}
    errors = [o for cell in made for o in cell["outputs"] if o["output_type"] == "error"]
    return states <= {"completed"} and not errors


def _why(job: Job, code: int, said: str) -> tuple[int | None, str]:
    """Return the cell, as its author counts, and the last lines of what went wrong."""
    try:
        found = cells(job.partial)
    except ParameterError:  # killed before, or while, it was written
        found = []
    own = [c for c in found if not INJECTED & set(c["metadata"].get("tags", ()))]
    times = [c["metadata"].get("papermill", {}).get("start_time") for c in own]
    errors = [o for c in own for o in c.get("outputs", ()) if o["output_type"] == "error"]
    lines = "\n".join(errors[-1]["traceback"]).splitlines() if errors else said.splitlines()
    if "CellTimeoutError" in said:
        lines = [f"the cell ran longer than its limit of {job.timeout_s} s"]
    elif "DeadKernelError" in said:
        lines = ["the kernel died; mostly because memory ran out"]
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines if line.strip()]
    plain = plain or [f"its process ended unasked (exit code {code})"]
    begun = [number for number, time in enumerate(times, 1) if time is not None]
    return max(begun, default=None), "\n".join(plain[-ERROR_LINES:])
