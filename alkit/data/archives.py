"""Read the files of archives. Nothing is unpacked to the disk, and a pickle gives arrays only."""

import pickle
import re
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one
ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype")}
ARRAYS |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


def files(path: Path, wanted: str, parts: int = 1) -> dict[str, bytes]:
    """Return the files of a zip or tar whose names have the pattern, by their last parts."""
    asked, found = re.compile(wanted).search, dict[str, bytes]()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if asked(info.filename):
                    found[_bounded(info.filename, info.file_size)] = archive.read(info)
    else:
        with tarfile.open(path) as tar:
            for member in tar:  # read on the way: a way back is another way from the beginning
                if asked(member.name) and (file := tar.extractfile(member)):
                    found[_bounded(member.name, member.size)] = file.read()
    return {"/".join(PurePosixPath(name).parts[-parts:]): own for name, own in found.items()}


def _bounded(name: str, size: int) -> str:
    if size > MOST:
        raise ValueError(f"{name} has {size:,} bytes, and no official file has so many")
    return name


class Arrays(pickle.Unpickler):
    """Read a pickle of numbers, bytes, containers and numpy arrays: other functions don't run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of arrays; anything else is an UnpicklingError."""
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only arrays are read")
        return super().find_class(module, name)
