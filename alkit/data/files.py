"""Files that are whole at any moment: written beside their place, then renamed into it.

    write   .NAME.PID.TOKEN.partial  ->  fsync  ->  rename to NAME

A process that is killed leaves the old file or the new one, never half of one; what it leaves of a
partial file is removed by the next `clean`. A link stays a link: what it leads to is replaced.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

try:
    import fcntl
except ImportError:  # no Unix: two runs on one file are not told apart
    fcntl = None  # type: ignore[assignment]

TRIES = 10  # to hold a lock whose file others take away
_WRITING: set[str] = set()  # partial files of this process


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; it takes the place of `path` when the block ends without an error.

    The folder is made if it is missing.

    Example:
        with replacing("table.csv") as partial:
            frame.to_csv(partial)
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    _WRITING.add(partial.name)
    try:
        yield partial
        _sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        _WRITING.discard(partial.name)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder can't be opened
        _sync(path.parent, os.O_DIRECTORY)


def clean(path: str | Path) -> None:
    """Remove the partial files that killed processes have left beside `path`."""
    path = Path(path).resolve()
    ours = re.compile(re.escape(f".{path.name}.") + r"(\d+)(?:\.\w+)?\.partial")
    for other in path.parent.glob(".*.partial"):
        match = ours.fullmatch(other.name)
        # one that is being written right now belongs to a process that lives
        dead = match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1])))
        if dead and other.name not in _WRITING:
            other.unlink(missing_ok=True)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Let nobody else hold `path` meanwhile: a run has its file to itself.

    The lock is the system's, so it ends with its process, however that ends.

    Raises:
        RuntimeError: another run holds it; says whose process, where and since when.
    """
    path = Path(path).resolve()
    if fcntl is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    handle = _hold(lock, path)
    try:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {now}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _hold(lock: Path, path: Path) -> int:
    """Return the handle of the lock's file, which is held."""
    for _ in range(TRIES):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(handle, 200, 0).decode(errors="replace") or "another run"
            os.close(handle)
            raise RuntimeError(
                f"{path} is in use by {who}: wait for its end, or give another path"
            ) from None
        with suppress(FileNotFoundError):  # whoever held it before has taken its file away
            if os.fstat(handle).st_ino == lock.stat().st_ino:
                return handle
        os.close(handle)
    raise RuntimeError(f"{path} can't be locked: {lock} comes and goes")


def _sync(path: Path, kind: int = 0) -> None:
    """Have the file, or the rename in the folder, on the disk and not in a buffer."""
    handle = os.open(path, os.O_RDONLY | kind)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
