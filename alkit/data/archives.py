"""Read and unpack archives: zip, tar, and folders as if they were archives.

Archives come from elsewhere, so nothing of theirs is trusted: names that leave the folder, links,
devices and too many bytes are refused before anything is written, and a pickle gives arrays only.
"""

import hashlib
import io
import os
import pickle
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NoRoom", "check_room", "fingerprint", "members", "unpack", "unpickle"]

MAX_BYTES = 20 * 2**30
_TAR = (".tgz", ".tar.gz", ".tar")


class NoRoom(OSError):
    """The disk has too few bytes free."""


class _Member(NamedTuple):
    name: str
    size: int
    plain: bool  # an ordinary file or a folder


def members(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file of an archive or folder.

    Names have forward slashes. Archives give their own order, folders the order of the names.

    Raises:
        ValueError: it is no archive and no folder, or it is damaged; names it.
    """
    with _naming(path):
        if path.is_dir():
            yield from _folder_members(path, wanted)
        elif path.suffix == ".zip":
            yield from _zip_members(path, wanted)
        elif path.name.endswith(_TAR):
            yield from _tar_members(path, wanted)
        else:
            raise ValueError(f"{path}: no .zip, .tgz, .tar.gz or .tar and no folder")


def fingerprint(path: Path) -> str:
    """Hash size and time of an archive, or names, sizes and times of all files of a folder."""
    digest = hashlib.sha256()
    files = sorted(_files(path)) if path.is_dir() else [path]
    for file in files:
        status = file.stat()
        line = f"{file.relative_to(path).as_posix()} {status.st_size} {status.st_mtime_ns}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def unpack(path: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> list[Path]:
    """Unpack an archive into a folder, whole or not at all; return what came to lie there.

    Raises:
        ValueError: a damaged archive, a name that leaves the folder, a link, a device, or more
            than `max_bytes`; names it. Nothing is left behind.
        FileExistsError: something of that name lies there already.
        NoRoom: the disk is too full; says how much is needed and how much is free.
    """
    with _naming(path):
        listing = _zip_listing(path) if path.suffix == ".zip" else _tar_listing(path)
    _check_listing(path, listing, max_bytes)
    check_room(folder, sum(member.size for member in listing))
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{path.name}.partial.d"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _naming(path):
            _extract(path, partial)
        return _move(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def unpickle(path: Path, name: str, content: bytes) -> Any:
    """Return what a pickle of Python 2 holds: numbers, bytes, lists, dictionaries, numpy arrays.

    Raises:
        ValueError: it asks for anything else, which does not run, or is damaged; names the file.
    """
    try:
        return _NumpyOnly(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(f"{path}: {name}: {error}; it is not the official file") from error
    except Exception as error:  # a damaged pickle fails in as many ways as Python has
        raise ValueError(f"{path}: {name}: damaged ({error}); fetch it again") from error


def check_room(folder: Path, needed: int) -> None:
    """Raise NoRoom where the disk of the folder, which need not exist, has fewer bytes free."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise NoRoom(f"no room in {folder}: {needed:,} bytes needed, {free:,} free")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn the many ways in which a damaged archive fails into one."""
    damage = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError)
    try:
        yield
    except damage as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno is not None:  # gzip.BadGzipFile has none; a full disk or a lost file has
            raise
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = str(error).partition(":\n")[0]
    return ValueError(f"{path}: damaged or incomplete ({reason}); remove it and fetch it again")


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _folder_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    for file in sorted(_files(path)):
        name = file.relative_to(path).as_posix()
        if wanted(name):
            yield name, file.read_bytes()


def _zip_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and wanted(member.filename):
                yield member.filename, archive.read(member)


def _tar_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() and wanted(member.name) else None
            if file is not None:
                yield member.name, file.read()


def _zip_listing(path: Path) -> list[_Member]:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    kinds = [stat.S_IFMT(info.external_attr >> 16) for info in infos]
    plain = (0, stat.S_IFREG, stat.S_IFDIR)  # 0: made where files have no Unix mode
    return [
        _Member(info.orig_filename, info.file_size, kind in plain)
        for info, kind in zip(infos, kinds, strict=True)
    ]


def _tar_listing(path: Path) -> list[_Member]:
    with tarfile.open(path) as archive:
        return [_Member(m.name, m.size, m.isreg() or m.isdir()) for m in archive]


def _check_listing(path: Path, listing: list[_Member], max_bytes: int) -> None:
    for name, _, plain in listing:
        windows = PureWindowsPath(name)  # its rules know both slashes, and drives
        if windows.drive or windows.root or "\\" in name or ".." in windows.parts:
            raise ValueError(f"{path}: refused, {name} leaves the folder")
        if not plain:
            raise ValueError(f"{path}: refused, {name} is a link or a device")
    total = sum(member.size for member in listing)
    if total > max_bytes:
        raise ValueError(
            f"{path}: refused, it holds {total:,} bytes, at most {max_bytes:,} are unpacked"
        )


def _extract(path: Path, folder: Path) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    else:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")


def _move(partial: Path, folder: Path) -> list[Path]:
    tops = sorted(partial.iterdir())
    for top in tops:
        if (folder / top.name).exists():
            raise FileExistsError(f"{folder / top.name} is there already; remove it first")
    return [top.rename(folder / top.name) for top in tops]


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
