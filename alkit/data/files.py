"""Files that are whole at any moment: written beside their place, then renamed into it.

    write   .NAME.PID.partial  ->  fsync  ->  rename to NAME

A process that is killed leaves the old file or the new one, never half of one; what it leaves of a
partial file is removed by the next `clean`.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["clean", "replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; it takes the place of `path` when the block ends without an error.

    The folder is made if it is missing.

    Example:
        with replacing("table.csv") as partial:
            frame.to_csv(partial)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        _sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder can't be opened
        _sync(path.parent, os.O_DIRECTORY)


def clean(path: str | Path) -> None:
    """Remove the partial files that killed processes have left beside `path`."""
    path = Path(path)
    ours = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.partial")
    for other in path.parent.glob(".*.partial"):
        match = ours.fullmatch(other.name)
        # one that is being written right now belongs to a process that lives
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            other.unlink(missing_ok=True)


def _sync(path: Path, kind: int = 0) -> None:
    """Have the file, or the rename in the folder, on the disk and not in a buffer."""
    handle = os.open(path, os.O_RDONLY | kind)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
