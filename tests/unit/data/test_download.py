"""Fetching, against a real server on a free port of the loopback device."""

import hashlib
import shutil
import socket
import threading
import time
from collections import namedtuple
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from alkit.data import catalog, download, paths
from alkit.data.catalog import Entry, Remote

CONTENT = bytes(i * i % 251 for i in range(300_000))
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """What the server shall do wrong, and how often it was asked."""

    def __init__(self) -> None:
        self.files = {"/set.bin": CONTENT}
        self.asked = 0
        self.cuts: list[int] = []  # after how many bytes the next answers break off
        self.codes: list[int] = []  # what the next answers fail with
        self.length = True  # whether answers say how long they are
        self.drip_s = 0.0  # between two bytes
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        if self.codes or handler.path not in self.files:
            handler.send_error(self.codes.pop(0) if self.codes else 404)
            return
        content = self.files[handler.path]
        handler.send_response(200)
        if self.length:
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        content = content[: self.cuts.pop(0)] if self.cuts else content
        if not self.drip_s:
            handler.wfile.write(content)
        for at in range(len(content) if self.drip_s else 0):
            handler.wfile.write(content[at : at + 1])
            time.sleep(self.drip_s)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # who has enough hangs up
                state.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{running.server_port}"
        yield state
        running.shutdown()
        thread.join()


def fetched(server: Server, target: Path, *arguments: Any, **options: Any) -> str:
    return download.fetch(
        f"{server.url}/set.bin", target, *arguments or (len(CONTENT), SHA), **options
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_whole_and_once(server, tmp_path):
    target = tmp_path / "new" / "set.bin"
    for _ in range(2):  # what is there is not fetched again
        assert fetched(server, target) == f"sha256:{SHA}"
        assert target.read_bytes() == CONTENT
        assert left(target.parent) == ["set.bin"]
        assert server.asked == 1
    with pytest.raises(download.FetchError, match=f"set.bin is {SHA}, not 0; remove it to fetch"):
        fetched(server, target, len(CONTENT), "0")
    with pytest.raises(download.FetchError, match="set.bin has 300,000 bytes, not 9; remove it"):
        fetched(server, target, 9, "0")
    assert target.read_bytes() == CONTENT


def test_without_a_published_sum_that_of_the_first_download_counts(server, tmp_path):
    target = tmp_path / "set.bin"
    assert fetched(server, target, len(CONTENT)) == f"sha256:{SHA}"
    assert left(tmp_path) == ["set.bin", "set.bin.sha256"]
    assert (tmp_path / "set.bin.sha256").read_text() == f"{SHA}\n"
    target.unlink()
    server.files["/set.bin"] = CONTENT[::-1]
    with pytest.raises(download.FetchError, match=f"not {SHA}; it was removed"):
        fetched(server, target, len(CONTENT))
    target.write_bytes(CONTENT[::-1])
    with pytest.raises(download.FetchError, match=f"not {SHA}; remove it to fetch it again"):
        fetched(server, target, len(CONTENT))
    other = tmp_path / "by hand" / "set.bin"
    other.parent.mkdir()
    other.write_bytes(CONTENT)
    assert fetched(server, other, len(CONTENT)) == f"sha256:{SHA}"
    assert left(other.parent) == ["set.bin", "set.bin.sha256"]


@pytest.mark.parametrize("length", [True, False])
def test_more_than_the_size_is_not_taken(server, tmp_path, length):
    """A server once gave 419 MB where 1,000 bytes were due: no length, no checksum."""
    server.length, server.files["/set.bin"] = length, CONTENT * 100
    match = "more than the 1,000 bytes of the file came" if not length else "30,000,000 bytes, exp"
    with pytest.raises(download.FetchError, match=match):
        fetched(server, tmp_path / "set.bin", 1_000)
    assert left(tmp_path) == []
    assert server.asked == 1


def test_an_endless_drip_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "BLOCK_S", 0.3)
    server.drip_s = 0.05
    with pytest.raises(download.FetchError, match="too slow: 65,536 bytes took .* after 2"):
        fetched(server, tmp_path / "set.bin", retries=1)
    assert server.asked == 2
    assert left(tmp_path) == []


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nA: ", b""])
def test_headers_that_drip_and_a_server_that_is_silent_are_given_up(tmp_path, monkeypatch, head):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "BLOCK_S", 0.3)
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):
                connection.sendall(head)
                while not ended.wait(0.05):
                    connection.sendall(head[-1:] and b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/set.bin"
        said, retries = ("too slow", 0) if head else ("timed out after 2 tries", 1)
        with pytest.raises(download.FetchError, match=said):
            download.fetch(url, tmp_path / "set.bin", 9, retries=retries, timeout_s=0.2)
        ended.set()
        thread.join()


def test_a_broken_connection_is_tried_again(server, tmp_path):
    server.cuts = [100_000, 0]
    assert fetched(server, tmp_path / "set.bin") == f"sha256:{SHA}"
    assert server.asked == 3
    server.cuts = [100_000] * 9
    with pytest.raises(download.FetchError, match="broke at 100,000 of 300,000 .* after 2"):
        fetched(server, tmp_path / "other.bin", retries=1)
    assert left(tmp_path) == ["set.bin"]


def test_what_is_not_fetched_leaves_nothing_and_is_asked_for_once(server, tmp_path, monkeypatch):
    with pytest.raises(download.FetchError, match=f"{SHA}, not {'0' * 64}; it was removed"):
        fetched(server, tmp_path / "set.bin", len(CONTENT), "0" * 64)
    with pytest.raises(download.FetchError, match="/none.bin: 404 Not Found"):
        download.fetch(f"{server.url}/none.bin", tmp_path / "none.bin", 9)
    usage = namedtuple("Usage", "total used free")(10, 3, 7)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="no room in .*: 300,000 bytes needed, 7 free"):
        fetched(server, tmp_path / "set.bin")
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Path, "open", lambda self, mode: open("/dev/full", mode))
    with pytest.raises(OSError, match="No space left"):  # the disk's fault is not tried again
        fetched(server, tmp_path / "set.bin")
    assert server.asked == 3
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again_and_not_for_ever(server, tmp_path):
    server.codes = [503, 429, 500]
    assert fetched(server, tmp_path / "set.bin", retries=3) == f"sha256:{SHA}"
    server.codes, server.asked = [503] * 9, 0
    with pytest.raises(download.FetchError, match="Service Unavailable after 3 tries"):
        fetched(server, tmp_path / "b.bin", retries=2)
    assert server.asked == 3


def test_only_http_is_fetched_and_followed(server, tmp_path):
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "/etc/passwd", "http:"):
        with pytest.raises(ValueError, match="only http:// and https:// addresses"):
            download.fetch(url, tmp_path / "x", 9)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "ftp://127.0.0.1/x")
        handler.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(download.FetchError, match="ftp"):
        fetched(server, tmp_path / "x", retries=0)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.delenv("ALKIT_DATA", raising=False)
    monkeypatch.delenv("ALKIT_MIRROR", raising=False)
    return tmp_path


def entry(monkeypatch: pytest.MonkeyPatch, *remotes: Remote) -> None:
    made = Entry("toy", "a toy", ("set.tgz",), (".",), "a.csv", remotes=remotes)
    monkeypatch.setitem(catalog.ENTRIES, "toy", made)


def test_get_takes_the_mirror_and_lays_the_archive_where_it_is_found(server, checkout, monkeypatch):
    entry(monkeypatch, Remote(f"{server.url}/official/set.tgz", len(CONTENT), SHA))
    server.files = {"/m/set.tgz": CONTENT, "/official/set.tgz": CONTENT, "/e/set.tgz": CONTENT}
    got = download.get("toy", mirror=f"{server.url}/m/")
    assert got == [(checkout / "data" / "toy" / "set.tgz", f"sha256:{SHA}")]
    assert catalog.find("toy") == got[0][0]
    monkeypatch.setenv("ALKIT_MIRROR", f"{server.url}/e")
    out = checkout / "out"
    assert download.get("toy", out=out)[0][0] == out / "set.tgz"
    del server.files["/e/set.tgz"]
    with pytest.raises(download.FetchError, match="/e/set.tgz: 404"):
        download.get("toy", out=checkout / "other")
    monkeypatch.delenv("ALKIT_MIRROR")
    assert download.get("toy", out=checkout / "other")


def test_a_mirror_has_a_folder_for_sets_of_several_files(server, checkout, monkeypatch):
    server.files = {f"/toy/{name}.csv": b"text,label\n" for name in "ab"}
    entry(monkeypatch, *(Remote(f"http://x/{name}.csv", 11) for name in "ab"))
    got = download.get("toy", mirror=server.url)
    home = checkout / "data" / "toy"
    assert [path for path, _ in got] == [home / "a.csv", home / "b.csv"]
    assert catalog.find("toy") == home
    with pytest.raises(ValueError, match="no data set 'fashion'; there are ag_news, "):
        download.get("fashion")
    with pytest.raises(ValueError, match="wikitext cannot be fetched: put the official"):
        download.get("wikitext")
    with pytest.raises(ValueError, match="digits comes with the packages"):
        download.get("digits")
