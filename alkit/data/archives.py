"""Read the files of archives. Nothing is unpacked to the disk, and a pickle gives arrays only."""

import io
import pickle
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one
ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def members(path: Path, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a zip or tar in whose name the pattern is found.

    Raises:
        ValueError: one is larger than `MOST`.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if re.search(wanted, info.filename):
                    yield info.filename, bounded(archive.open(info), info.filename)
    else:
        with tarfile.open(path) as tar:
            for member in tar:
                if re.search(wanted, member.name) and (file := tar.extractfile(member)):
                    yield member.name, bounded(file, member.name)


def files(path: Path, wanted: str) -> dict[str, bytes]:
    """Return the contents of `members` by the last parts of their names."""
    return {PurePosixPath(name).name: content for name, content in members(path, wanted)}


def bounded(file: IO[bytes] | io.BufferedIOBase, name: str) -> bytes:
    """Return what an unpacked file holds, if that is no more than `MOST` bytes."""
    with file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise ValueError(f"{name} has more than {MOST:,} bytes, and no official file has")
    return content


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
