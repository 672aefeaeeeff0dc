"""Temporary folders, of stored features and of ranks, and what a killed process leaves of them.

    alkit-cache-x1y2z3/
        lock             held by the process that made the folder; the system frees it at its end
        generation-0/    ...

A folder goes away with its run. Killed runs leave theirs: its lock is free, and `clear` removes it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

PREFIXES = ("alkit-cache-", "alkit-ranks-")
LOCK = "lock"


class Home:
    """A new folder, until `close`, the end of a `with` block or that of the process.

    Args:
        where: the folder that it is made in; None for the system's temporary one.
        kind: "cache" or "ranks".
    Raises:
        OSError: it cannot be made there; says what to do.
    """

    def __init__(self, where: str | Path | None = None, kind: str = "cache") -> None:
        made = None
        try:
            made = tempfile.mkdtemp(prefix=f"alkit-{kind}-", dir=where)
            self.lock = os.open(Path(made) / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            advice = {
                "cache": "give another cache_folder, or switch the cache off",
                "ranks": "set TMPDIR to a folder with room",
            }[kind]
            raise OSError(
                f"no folder for {kind} in {where or tempfile.gettempdir()}: {error}; {advice}"
            ) from error
        self.path = Path(made)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)

    def __enter__(self) -> "Home":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def left_behind(where: str | Path | None = None) -> Iterator[Path]:
    """Yield the own folders in `where` whose process is gone; default the temporary folder."""
    for path in sorted(Path(where or tempfile.gettempdir()).iterdir()):
        own = path.name.startswith(PREFIXES) and not path.is_symlink()
        if not own or not (path / LOCK).is_file() or path.stat().st_uid != os.getuid():
            continue
        lock = os.open(path / LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # in use
        else:
            yield path
        finally:
            os.close(lock)


def clear(where: str | Path | None = None) -> dict[Path, int]:
    """Remove what killed runs left in `where`; return the bytes of each folder.

    Raises:
        NotADirectoryError: there is no such folder.
        OSError: one of them cannot be removed.
    """
    if where is not None and not Path(where).is_dir():
        raise NotADirectoryError(f"no folder {where}: give one that was a cache_folder")
    removed = {}
    for path in left_behind(where):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        shutil.rmtree(path)
        removed[path] = size
    return removed
