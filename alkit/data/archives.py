"""Read the files of archives. Nothing is unpacked to the disk, and a pickle gives arrays only."""

import pickle
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype")}
ARRAYS |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


def members(path: Path, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a zip or tar in whose name the pattern is found."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in filter(re.compile(wanted).search, archive.namelist()):
                yield name, archive.read(name)
    else:
        with tarfile.open(path) as tar:
            for member in tar:
                if re.search(wanted, member.name) and (file := tar.extractfile(member)):
                    yield member.name, file.read()


def files(path: Path, wanted: str) -> dict[str, bytes]:
    """Return the contents of `members` by the last parts of their names."""
    return {PurePosixPath(name).name: content for name, content in members(path, wanted)}


class Arrays(pickle.Unpickler):
    """Read a pickle of numbers, bytes, containers and numpy arrays: other functions don't run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array; anything else that is asked for is an UnpicklingError."""
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only arrays are read")
        return super().find_class(module, name)
