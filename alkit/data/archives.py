"""Read the files of archives. Nothing is unpacked to the disk, and a pickle gives arrays only."""

import pickle
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one
ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype")}
ARRAYS |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


def files(path: Path, wanted: str, parts: int = 1) -> dict[str, bytes]:
    """Return a zip's or tar's files in whose name the pattern is found, by its last parts."""
    asked = re.compile(wanted).search
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            own = [each for each in archive.infolist() if asked(each.filename)]
            _check_sizes((each.filename, each.file_size) for each in own)
            found = {each.filename: archive.read(each) for each in own}
    else:
        with tarfile.open(path) as tar:
            members = [each for each in tar if asked(each.name)]
            _check_sizes((each.name, each.size) for each in members)
            opened = ((each.name, tar.extractfile(each)) for each in members)
            found = {name: file.read() for name, file in opened if file}
    return {"/".join(PurePosixPath(name).parts[-parts:]): own for name, own in found.items()}


def _check_sizes(sizes: Iterable[tuple[str, int]]) -> None:
    for name, size in sizes:
        if size > MOST:
            raise ValueError(f"{name} has {size:,} bytes, and no official file has so many")


class Arrays(pickle.Unpickler):
    """Read a pickle of numbers, bytes, containers and numpy arrays: other functions don't run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array; anything else that is asked for is an UnpicklingError."""
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only arrays are read")
        return super().find_class(module, name)
