"""Read the files of archives. Nothing is unpacked to the disk, and a pickle gives arrays only."""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one
ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file of a zip or tar.

    Raises:
        ValueError: one is larger than `MOST`.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if wanted(info.filename):
                    yield info.filename, bounded(archive.open(info), info.filename)
    else:
        with tarfile.open(path) as tar:
            for member in tar:
                if wanted(member.name) and (file := tar.extractfile(member)):
                    yield member.name, bounded(file, member.name)


def bounded(file: IO[bytes] | io.BufferedIOBase, name: str) -> bytes:
    """Return what an unpacked file holds, if that is no more than `MOST` bytes."""
    with file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise ValueError(f"{name} has more than {MOST:,} bytes, and no official file has")
    return content


def contents(path: Path, *names: str) -> list[bytes]:
    """Return the content of each file of these names, wherever in the archive.

    Raises:
        KeyError: one is not there.
    """
    found = members(path, lambda each: PurePosixPath(each).name in names)
    held = {PurePosixPath(name).name: content for name, content in found}
    return [held[name] for name in names]


def unpickle(content: bytes) -> Any:
    """Return what a pickle of Python 2 holds: numbers, bytes, lists, dictionaries, numpy arrays.

    Raises:
        UnpicklingError: it asks for anything else, which does not run.
    """
    return _Arrays(io.BytesIO(content), encoding="bytes").load()


class _Arrays(pickle.Unpickler):
    """Refuse every function that a pickle names, but those that make arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only arrays are read")
        return super().find_class(module, name)
