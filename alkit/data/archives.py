"""Read the files of archives: zip, tar, and folders as if they were archives.

Archives come from elsewhere: nothing of theirs is unpacked to the disk, no file may be larger than
any official one is, and a pickle gives arrays only.
"""

import hashlib
import io
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

MOST = 2**30  # bytes of one file, unpacked: twice the largest official one


def members(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file of an archive or folder.

    Names have forward slashes. Archives give their own order, folders the order of the names. What
    systems leave is passed over: hidden files and folders, `__MACOSX`, backups.

    Raises:
        ValueError: it is no archive and no folder, it is damaged, or a file of it says that it is
            larger than any official one; names it.
    """
    with naming(path):
        if path.is_dir():
            names = [(file.relative_to(path).as_posix(), file) for file in files(path)]
            yield from ((name, file.read_bytes()) for name, file in names if wanted(name))
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if not info.is_dir() and plausible(info.filename) and wanted(info.filename):
                        _check_size(path, info.filename, info.file_size)
                        yield info.filename, archive.read(info)
        elif path.name.endswith((".tgz", ".tar.gz", ".tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isreg() and plausible(member.name) and wanted(member.name):
                        _check_size(path, member.name, member.size)
                        file = archive.extractfile(member)
                        assert file is not None
                        yield member.name, file.read()
        else:
            raise ValueError(f"{path}: no .zip, .tgz, .tar.gz or .tar and no folder")


def contents(path: Path, *names: str) -> list[tuple[str, bytes]]:
    """Return "archive[file]" or "folder/file", for messages, and the content of each named file.

    Raises:
        ValueError: one is not there.
    """
    found: dict[str, tuple[str, bytes]] = {}
    for name, content in members(path, lambda each: PurePosixPath(each).name in names):
        source = str(path / name) if path.is_dir() else f"{path}[{name}]"
        found.setdefault(PurePosixPath(name).name, (source, content))
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path}: there is no {missing[0]}; it is another set or incomplete")
    return [found[name] for name in names]


def fingerprint(path: Path) -> str:
    """Hash size and time of an archive, or names, sizes and times of all files of a folder."""
    digest = hashlib.sha256()
    for file in files(path) if path.is_dir() else [path]:
        status = file.stat()
        line = f"{file.relative_to(path).as_posix()} {status.st_size} {status.st_mtime_ns}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def unpickle(source: str, content: bytes) -> Any:
    """Return what a pickle of Python 2 holds: numbers, bytes, lists, dictionaries, numpy arrays.

    Raises:
        ValueError: it asks for anything else, which does not run, or is damaged; names the source.
    """
    try:
        return _NumpyOnly(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(f"{source}: {error}; it is not the official file") from error
    except Exception as error:  # a damaged pickle fails in as many ways as Python has
        raise ValueError(f"{source}: damaged ({error}); fetch it again") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn the many ways in which a damaged archive fails into a ValueError that names it."""
    damage = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError, OSError)
    try:
        yield
    except damage as error:
        if getattr(error, "errno", None) is not None:  # a lost file has one, gzip.BadGzipFile none
            raise
        reason = str(error).partition(":\n")[0]
        raise ValueError(
            f"{path}: damaged or incomplete ({reason}); remove it and fetch it again"
        ) from error


def files(folder: Path) -> list[Path]:
    """Return the files below a folder that users put there; each folder that links lead to once."""
    found, seen = [], set[str]()
    for parent, inner, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        inner[:] = [] if real in seen else sorted(filter(plausible, inner))
        found += [Path(parent, name) for name in names if real not in seen and plausible(name)]
        seen.add(real)
    return sorted(found)


def plausible(name: str) -> bool:
    """Say whether users put a file there, and not a system: neither hidden nor `__MACOSX`."""
    return not any(part.startswith((".", "__", "~")) for part in PurePosixPath(name).parts)


def _check_size(path: Path, name: str, size: int) -> None:
    if size > MOST:
        raise ValueError(f"{path}: refused, {name} has {size:,} bytes, at most {MOST:,} are read")


class _Refused(pickle.UnpicklingError):
    """A pickle asked for something other than an array."""


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
            raise _Refused(f"{module}.{name} is refused: only arrays are read")
        return allowed[module, name]


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Encode as Python 2 strings are pickled; other codecs could do more than encode."""
    if encoding != "latin1":
        raise _Refused(f"_codecs.encode to {encoding} is refused")
    return text.encode("latin1")
