"""Fetch the official archives: bounded in size and time, checked, and in their place only whole."""

import errno
import hashlib
import http.client
import io
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm.auto import tqdm

from alkit.data import catalog, files

WAIT_S = 1.0  # before the second try; doubled before each further one
BLOCK, BLOCK_S = 2**16, 60.0  # so many bytes, or the headers, come within so many seconds
_BUSY = (408, 425, 429, 500, 502, 503, 504)


class FetchError(Exception):
    """A file could not be fetched, or is not what it should be."""


def get(name: str, *, mirror: str | None = None, out: Path | None = None) -> list[tuple[Path, str]]:
    """Fetch a set of the catalogue; return each file with its checksum.

    Args:
        mirror: address of a folder that holds the archives under their official names, sets of
            several files in a folder of their name; None for `ALKIT_MIRROR` or the official ones.
        out: folder; None for where `alkit.data.datasets` and `alkit.data.text` look.
    Raises:
        ValueError: no such set, one that cannot be fetched, or no http address.
        FetchError, OSError: what `fetch` raises.
    """
    wanted = catalog.entry(name)
    if not wanted.remotes:
        raise ValueError(f"{name} cannot be fetched: {wanted.how}")
    mirror = (mirror or os.environ.get("ALKIT_MIRROR", "")).rstrip("/")
    mirror += f"/{name}" if mirror and len(wanted.remotes) > 1 else ""
    targets = [(remote, (out or wanted.home) / remote.file) for remote in wanted.remotes]
    return [
        (target, fetch(f"{mirror}/{remote.file}" if mirror else remote.url, target, *remote[1:]))
        for remote, target in targets
    ]


def fetch(
    url: str,
    target: Path,
    size: int,
    sha256: str = "",
    *,
    retries: int = 4,
    timeout_s: float = 30.0,
) -> str:
    """Fetch a file beside its place, and move it there when it is whole and right.

    Args:
        size: in bytes; what says that it has others, or goes on after them, is not taken.
        sha256: the file's; where none is known, that of the first download is kept beside it, in
            `<target>.sha256`, and later ones are compared with that.
        retries: further tries, from the beginning, after the first that did not go through.
        timeout_s: for connecting, and for each wait for bytes.
    Returns: "sha256:..." of the file.
    Raises:
        ValueError: the address is not http or https.
        FetchError: the server says no, does not answer, is too slow, or the file is another.
        OSError: the disk is too full; says how much is needed and how much is free.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError(f"{url}: only http:// and https:// addresses are fetched")
    kept = target.with_name(f"{target.name}.sha256")
    known = sha256 or (kept.read_text(encoding="utf-8").strip() if kept.exists() else "")
    if target.exists():
        digest = _checked(target, url, size, known, "; remove it to fetch it again")
    else:
        files.clean(target)
        with files.replacing(target) as partial:
            _check_room(target.parent, size)
            _take(url, partial, size, retries, timeout_s)
            digest = _checked(partial, url, size, known, "; it was removed")
    if not known:
        with files.replacing(kept) as partial:
            partial.write_text(f"{digest}\n", encoding="utf-8")
    return f"sha256:{digest}"


def _check_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(f"no room in {folder}: {needed:,} bytes needed, {free:,} free")


def _take(url: str, partial: Path, size: int, retries: int, timeout_s: float) -> None:
    """Try until the file is there, and not for ever."""
    for attempt in range(retries + 1):
        try:
            return _connect(url, partial, size, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code not in _BUSY:
                    raise FetchError(f"{url}: {error.code} {error.reason}") from error
            elif isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
                raise  # the disk's, not the connection's
            problem = error
        if attempt < retries:
            time.sleep(WAIT_S * 2**attempt)
    reason = getattr(problem, "reason", "") or str(problem) or type(problem).__name__
    raise FetchError(f"{url}: {reason} after {retries + 1} tries") from problem


def _connect(url: str, partial: Path, size: int, timeout_s: float) -> None:
    with _opener().open(url, timeout=timeout_s) as response, partial.open("wb") as file:
        said = response.headers.get("Content-Length", "")
        if said.isdigit() and int(said) != size:
            raise FetchError(f"{url}: the file has {int(said):,} bytes, expected {size:,}")
        bar = tqdm(total=size, unit="B", unit_scale=True, desc=url.rpartition("/")[2],
                   disable=None, leave=False)  # fmt: skip
        with bar:
            while chunk := response.read(BLOCK):
                if file.tell() + len(chunk) > size:
                    raise FetchError(f"{url}: more than the {size:,} bytes of the file came")
                file.write(chunk)
                bar.update(len(chunk))
        if file.tell() < size:
            raise ConnectionError(f"the connection broke at {file.tell():,} of {size:,} bytes")


def _checked(path: Path, url: str, size: int, known: str, remedy: str) -> str:
    """Return the SHA-256 of a file, or raise FetchError where it should be another."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if path.stat().st_size != size:
        raise FetchError(f"{url}: {path} has {path.stat().st_size:,} bytes, not {size:,}{remedy}")
    if known and digest != known:
        raise FetchError(f"{url}: the SHA-256 of {path} is {digest}, not {known}{remedy}")
    return digest


class _Timed(io.RawIOBase):
    """The bytes of a connection: each block has a deadline, however they drip."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.raw, self.left, self.due = raw, BLOCK, time.monotonic() + BLOCK_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self.due:
            raise TimeoutError(f"too slow: {BLOCK:,} bytes took more than {BLOCK_S:.0f} s")
        got = self.raw.readinto(buffer)
        self.left -= got or 0
        if self.left <= 0:
            self.left, self.due = BLOCK, time.monotonic() + BLOCK_S
        return got

    def close(self) -> None:
        self.raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = io.BufferedReader(_Timed(self.fp.detach()))


class _Plain(http.client.HTTPConnection):
    response_class = _Response


class _Secure(http.client.HTTPSConnection):
    response_class = _Response


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, request: Any) -> Any:
        return self.do_open(_Plain, request)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: Any) -> Any:
        return self.do_open(_Secure, request, context=ssl.create_default_context())


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows http and https only, also when redirected."""
    opener = urllib.request.OpenerDirector()
    request = urllib.request
    for handler in (
        request.ProxyHandler,
        _PlainHandler,
        _SecureHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener
