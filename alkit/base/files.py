"""Files that are whole at any moment: written beside their place, then renamed into it.

    write   .NAME.PID.TOKEN.partial  ->  fsync  ->  rename to NAME

A process that is killed leaves the old file or the new one, never half of one; what it leaves of a
partial file is removed by the next `clean`. A link stays a link: what it leads to is replaced.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

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

    The lock is the system's, so it ends with its process, however that ends; `.NAME.lock` stays.

    Raises:
        RuntimeError: another run holds it.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        said = f"{path} is in use by another run: wait for its end, or give another path"
        raise RuntimeError(said) from error
    try:
        yield
    finally:
        lock.release()


def _sync(path: Path, kind: int = 0) -> None:
    """Have the file, or the rename in the folder, on the disk and not in a buffer."""
    handle = os.open(path, os.O_RDONLY | kind)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
