"""Read the files of archives: zip, tar, and folders as if they were archives.

Archives come from elsewhere: nothing of theirs is unpacked to the disk, no file may be larger than
any official one is, and a pickle gives arrays only.
"""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file of an archive or folder.

    Names have forward slashes; hidden files and `__MACOSX` are passed over.
    """

    def good(name: str, size: int) -> bool:
        hidden = any(part.startswith((".", "__")) for part in PurePosixPath(name).parts)
        if (found := not hidden and wanted(name)) and size > MOST:
            raise ValueError(f"{path}: {name} has {size:,} bytes, and at most {MOST:,} are read")
        return found

    if path.is_dir():
        for file in sorted(each for each in path.rglob("*") if each.is_file()):
            if good(name := file.relative_to(path).as_posix(), file.stat().st_size):
                yield name, file.read_bytes()
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir() and good(info.filename, info.file_size):
                    yield info.filename, archive.read(info)
    else:
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and good(member.name, member.size):
                    yield member.name, content.read()


def contents(path: Path, *names: str) -> list[bytes]:
    """Return the content of each file of these names, wherever in the archive.

    Raises:
        ValueError: one is not there.
    """
    found = members(path, lambda each: PurePosixPath(each).name in names)
    held = {PurePosixPath(name).name: content for name, content in found}
    if missing := [name for name in names if name not in held]:
        raise ValueError(f"{path} holds no {missing[0]}: it is another set or incomplete")
    return [held[name] for name in names]


def unpickle(content: bytes) -> Any:
    """Return what a pickle of Python 2 holds: numbers, bytes, lists, dictionaries, numpy arrays.

    Raises:
        UnpicklingError: it asks for anything else, which does not run.
    """
    return _NumpyOnly(io.BytesIO(content), encoding="bytes").load()


class _NumpyOnly(pickle.Unpickler):
    """Read plain containers and numpy arrays; a pickle can name any function, these alone run."""

    def find_class(self, module: str, name: str) -> Any:
        made = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): made,
            ("numpy._core.multiarray", "_reconstruct"): made,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is refused: only arrays are read")
        return allowed[module, name]


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Encode as Python 2 strings are pickled; other codecs could do more than encode."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"_codecs.encode to {encoding} is refused")
    return text.encode("latin1")
