"""Fetch the official archives: resumed after a break, checked, and renamed only when whole."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from tqdm.auto import tqdm

from alkit.data import archives, catalog

__all__ = ["FetchError", "fetch", "get"]

WAIT_S = 1.0  # before the second try; doubled before each further one
_CHUNK = 2**18
_BUSY = (408, 425, 429, 500, 502, 503, 504)


class FetchError(Exception):
    """A file could not be fetched, or is not what it should be."""


class _Broken(Exception):
    """The connection ended before the file did."""


def get(name: str, *, mirror: str | None = None, out: Path | None = None) -> list[tuple[Path, str]]:
    """Fetch a set of the catalogue; return each file or folder with its checksum.

    Args:
        mirror: address of a folder that holds the archives under their official names, sets of
            several files in a folder of their name; None for `ALKIT_MIRROR` or the official ones.
        out: folder; None for where `alkit.data.datasets` and `alkit.data.text` look.
    Raises:
        ValueError: no such set, one that cannot be fetched, an unsafe archive or no http address.
        FetchError: what `fetch` raises.
    """
    wanted = catalog.entry(name)
    if not wanted.remotes:
        raise ValueError(f"{name} cannot be fetched: {wanted.how}")
    folder = wanted.home if out is None else out
    there = [folder / f for f in wanted.folders if (folder / f / wanted.marker).exists()]
    if wanted.unpack and there:
        return [(path, "") for path in there]
    got = []
    for remote in wanted.remotes:
        target = folder / remote.file
        url = _address(wanted, remote, mirror or os.environ.get("ALKIT_MIRROR"))
        digest = fetch(url, target, checksum=remote.checksum, size=remote.size)
        if wanted.unpack:
            got += [(path, digest) for path in archives.unpack(target, folder)]
            target.unlink()
        else:
            got.append((target, digest))
    return got


def fetch(
    url: str,
    target: Path,
    *,
    checksum: str = "",
    size: int | None = None,
    retries: int = 4,
    timeout_s: float = 30.0,
) -> str:
    """Fetch a file to `<target>.partial` and rename it when it is whole and right.

    A broken connection is taken up where it broke; what an earlier call left is taken up only with
    a checksum, for else nobody would see that it is of another file.

    Args:
        checksum: "md5:..." or "sha256:...".
        size: bytes expected, where there is no checksum to tell.
        retries: further tries after the first that did not go through.
        timeout_s: for connecting, and for each wait for bytes.
    Returns: "sha256:..." of the file.
    Raises:
        ValueError: the address is not http or https.
        FetchError: the server says no, does not answer, or the file is not the expected one.
        archives.NoRoom: says how much is needed and how much is free.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError(f"{url}: only http:// and https:// addresses are fetched")
    if target.exists():
        return _verified(target, url, checksum, "is there, but ", "; remove it to fetch it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    if not checksum:
        partial.unlink(missing_ok=True)
    _Transfer(url, partial, size, timeout_s).run(retries)
    try:
        digest = _verified(partial, url, checksum, "has come, but ", "; it was removed")
    except FetchError:
        partial.unlink()
        raise
    partial.replace(target)
    return digest


class _Transfer:
    """One file on its way, over as many connections as it takes."""

    def __init__(self, url: str, partial: Path, size: int | None, timeout_s: float) -> None:
        self.url, self.partial, self.size, self.timeout_s = url, partial, size, timeout_s
        self.total: int | None = None
        self.tag = ""  # what the server calls this version of the file

    def run(self, retries: int) -> None:
        for attempt in range(retries + 1):
            try:
                return self._connect()
            except (FetchError, archives.NoRoom):
                raise
            except (OSError, http.client.HTTPException, _Broken) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code not in _BUSY:
                    raise FetchError(f"{self.url}: {error.code} {error.reason}") from error
                problem = error
            if attempt < retries:
                time.sleep(WAIT_S * 2**attempt)
        raise FetchError(
            f"{self.url}: {_reason(problem)} after {retries + 1} tries{self._so_far()}"
        ) from problem

    def _connect(self) -> None:
        start = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and self.tag:
            headers["If-Range"] = self.tag
        request = urllib.request.Request(self.url, headers=headers)
        try:
            response = _opener().open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416:
                raise
            return self._settle(start)  # nothing follows what is here: whole, or of another file
        with response:
            self._read(response, start)

    def _settle(self, start: int) -> None:
        """Ask for the whole file's size; keep what is here if that is its size, else start anew."""
        request = urllib.request.Request(self.url)
        with _opener().open(request, timeout=self.timeout_s) as response:
            if _length(response) == start:
                return
            self._read(response, 0)

    def _read(self, response: HTTPResponse, start: int) -> None:
        ranged = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status != 206 or not ranged:
            start = 0
        length = _length(response)
        self.total = None if length is None else start + length
        self.tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        self._check_total(start)
        with self.partial.open("r+b" if start else "wb") as file:
            file.seek(start)
            done = self._copy(response, file, start)
        if self.total is not None and done < self.total:
            raise _Broken("the connection broke")

    def _check_total(self, start: int) -> None:
        if self.total is None:
            return
        if self.size not in (None, self.total):
            self.partial.unlink(missing_ok=True)
            raise FetchError(
                f"{self.url}: the file has {self.total:,} bytes, expected {self.size:,}"
            )
        archives.check_room(self.partial.parent, self.total - start)

    def _copy(self, response: HTTPResponse, file: BinaryIO, start: int) -> int:
        bar = tqdm(
            total=self.total,
            initial=start,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            desc=self.partial.stem,
            disable=None,
            leave=False,
        )
        with bar:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
                start += len(chunk)
        return start

    def _so_far(self) -> str:
        have = self.partial.stat().st_size if self.partial.exists() else 0
        if not have:
            return ""
        total = f" of {self.total:,}" if self.total else ""
        return f"; {have:,}{total} bytes are in {self.partial}, the next try goes on from there"


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows http and https only, also when redirected."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _length(response: HTTPResponse) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def _verified(path: Path, url: str, checksum: str, state: str, remedy: str) -> str:
    """Return the SHA-256 of a file, or raise FetchError where its checksum is another."""
    kind, _, expected = checksum.partition(":")
    digests = {"sha256": hashlib.sha256(), kind or "sha256": hashlib.new(kind or "sha256")}
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for digest in digests.values():
                digest.update(chunk)
    got = digests[kind or "sha256"].hexdigest()
    if expected and got != expected:
        raise FetchError(
            f"{url}: {path} {state}its {kind} is {got}, not the published {expected}{remedy}"
        )
    return f"sha256:{digests['sha256'].hexdigest()}"


def _address(wanted: catalog.Entry, remote: catalog.Remote, mirror: str | None) -> str:
    if not mirror:
        return remote.url
    folder = f"{wanted.name}/" if len(wanted.remotes) > 1 else ""
    return f"{mirror.rstrip('/')}/{folder}{remote.file}"
