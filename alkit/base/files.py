"""Files that are whole at any moment: a killed process leaves the old file or the new one."""

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, which becomes `path`, or the target of a link, after the block."""
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # on the disk, and not in a buffer
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Lock `path`, or raise `filelock.Timeout`; remove parts of it that killed runs left."""
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=0):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            left.unlink(missing_ok=True)
        yield
