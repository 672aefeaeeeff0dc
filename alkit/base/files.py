"""Files that are whole at any moment: written beside their place, then renamed into it.

    write   .NAME.TOKEN.partial  ->  fsync  ->  rename to NAME

A process that is killed leaves the old file or the new one; the next run that holds the file
removes what is left of a partial one. A link stays: what it leads to is replaced.
"""

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; it takes the place of `path` when the block ends without an error.

    The folder is made if it is missing.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder can't be opened
        _sync(path.parent, os.O_DIRECTORY)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Let nobody else hold `path` meanwhile; what killed runs left of a partial file is removed.

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
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            left.unlink(missing_ok=True)
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
