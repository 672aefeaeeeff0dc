"""Fetching, against a real server on a free port of the loopback device."""

import hashlib
import shutil
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from alkit.data import catalog, download, paths
from alkit.data.catalog import Entry, Remote

from .test_archives import make_tar

CONTENT = bytes(i * i % 251 for i in range(300_000))
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server:
    """What the server shall do wrong, and what it was asked."""

    def __init__(self) -> None:
        self.files = {"/set.bin": CONTENT}
        self.asked: list[str | None] = []
        self.cuts: list[int] = []  # after how many bytes the next answers break off
        self.codes: list[int] = []  # what the next answers fail with
        self.ranges = True
        self.tag = '"1"'
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.asked.append(wanted)
        if self.codes or handler.path not in self.files:
            handler.send_error(self.codes.pop(0) if self.codes else 404)
            return
        content = self.files[handler.path]
        start = 0
        if wanted and self.ranges and handler.headers.get("If-Range", self.tag) == self.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                handler.send_error(416)
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.send_header("ETag", self.tag)
        handler.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else len(content)
        handler.wfile.write(content[start:end])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
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


def fetched(server: Server, target: Path, **options: Any) -> str:
    return download.fetch(f"{server.url}/set.bin", target, **options)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_whole_and_once(server, tmp_path):
    for checksum in ("", MD5, SHA):
        server.asked, target = [], tmp_path / f"new{checksum[:3]}" / "set.bin"
        assert fetched(server, target, checksum=checksum) == SHA
        assert target.read_bytes() == CONTENT
        assert left(target.parent) == ["set.bin"]
        assert fetched(server, target, checksum=MD5) == SHA
        assert server.asked == [None]  # what is there is not fetched again
    with pytest.raises(download.FetchError, match="set.bin is there, but .*; remove it"):
        fetched(server, target, checksum="md5:0")
    assert target.read_bytes() == CONTENT


def test_a_broken_connection_is_taken_up_unless_the_file_changed(server, tmp_path, monkeypatch):
    server.cuts = [100_000, 150_000]
    assert fetched(server, tmp_path / "set.bin") == SHA
    assert server.asked == [None, "bytes=100000-", "bytes=250000-"]
    assert left(tmp_path) == ["set.bin"]
    server.asked, server.cuts, server.ranges = [], [100_000], False
    assert fetched(server, tmp_path / "whole.bin") == SHA
    assert server.asked == [None, "bytes=100000-"]
    server.cuts, server.ranges = [100_000], True

    def change(_: float) -> None:
        server.tag, server.files["/set.bin"] = '"2"', CONTENT[::-1]

    monkeypatch.setattr(download.time, "sleep", change)
    fetched(server, tmp_path / "changed.bin")
    assert (tmp_path / "changed.bin").read_bytes() == CONTENT[::-1]


def test_what_an_earlier_run_left_is_used_only_if_it_can_be_checked(server, tmp_path):
    (tmp_path / "set.bin.partial").write_bytes(CONTENT[:70_000])
    fetched(server, tmp_path / "set.bin", checksum=SHA)
    assert server.asked == ["bytes=70000-"]
    (tmp_path / "other.bin.partial").write_bytes(b"of something else")
    fetched(server, tmp_path / "other.bin")
    assert server.asked[1:] == [None]
    assert (tmp_path / "other.bin").read_bytes() == CONTENT
    for name, extra in (("finished", b""), ("too long", b"more than there is")):
        (tmp_path / f"{name}.partial").write_bytes(CONTENT + extra)
        assert fetched(server, tmp_path / name, checksum=SHA) == SHA
    assert left(tmp_path) == ["finished", "other.bin", "set.bin", "too long"]


def test_what_is_not_fetched_leaves_nothing_and_is_asked_for_once(server, tmp_path, monkeypatch):
    md5 = MD5.removeprefix("md5:")
    with pytest.raises(download.FetchError, match=f"{md5}.*{'0' * 32}|{'0' * 32}.*{md5}"):
        fetched(server, tmp_path / "set.bin", checksum="md5:" + "0" * 32)
    with pytest.raises(download.FetchError, match="300,000 bytes, expected 1,000"):
        fetched(server, tmp_path / "set.bin", size=1000)
    with pytest.raises(download.FetchError, match="/none.bin: 404 Not Found"):
        download.fetch(f"{server.url}/none.bin", tmp_path / "none.bin")
    usage = namedtuple("Usage", "total used free")(10, 3, 7)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="no room in .*: 300,000 bytes needed, 7 free"):
        fetched(server, tmp_path / "set.bin")
    assert len(server.asked) == 4
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again_and_not_for_ever_and_what_came_is_kept(server, tmp_path):
    server.codes = [503, 429, 500]
    assert fetched(server, tmp_path / "set.bin", retries=3) == SHA
    server.codes, server.asked = [503] * 9, []
    with pytest.raises(download.FetchError, match="503 .* after 3 tries"):
        fetched(server, tmp_path / "b.bin", retries=2)
    assert len(server.asked) == 3
    server.codes, server.cuts = [], [10, 10, 10]
    with pytest.raises(download.FetchError, match="30 of 300,000 bytes.*the next try goes on"):
        fetched(server, tmp_path / "c.bin", retries=2, checksum=SHA)
    assert (tmp_path / "c.bin.partial").read_bytes() == CONTENT[:30]


def test_a_server_that_is_silent_is_given_up(tmp_path, monkeypatch):
    import socket

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/set.bin"
        with pytest.raises(download.FetchError, match="timed out after 2 tries"):
            download.fetch(url, tmp_path / "set.bin", retries=1, timeout_s=0.2)


def test_only_http_is_fetched_and_followed(server, tmp_path):
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "/etc/passwd", "http:"):
        with pytest.raises(ValueError, match="only http:// and https:// addresses"):
            download.fetch(url, tmp_path / "x")

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


def entry(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, **options) -> None:
    remote = Remote(f"{server.url}/official/{name}.tgz")
    made = Entry("toy", "a toy", (f"{name}.tgz",), ("toy",), "a.txt", remotes=(remote,), **options)
    monkeypatch.setitem(catalog.ENTRIES, "toy", made)


def tar(folder: Path, *names: str) -> bytes:
    return make_tar(folder / "t.tgz", dict.fromkeys(names, b"abc")).read_bytes()


def test_get_takes_the_mirror_and_lays_the_archive_where_it_is_found(server, checkout, monkeypatch):
    entry(monkeypatch, server, "set")
    server.files = {"/m/set.tgz": CONTENT, "/official/set.tgz": CONTENT, "/e/set.tgz": CONTENT}
    got = download.get("toy", mirror=f"{server.url}/m/")
    assert got == [(checkout / "data" / "toy" / "set.tgz", SHA)]
    assert catalog.find("toy") == got[0][0]
    monkeypatch.setenv("ALKIT_MIRROR", f"{server.url}/e")
    out = checkout / "out"
    assert download.get("toy", out=out)[0][0] == out / "set.tgz"
    del server.files["/e/set.tgz"]
    with pytest.raises(download.FetchError, match="/e/set.tgz: 404"):
        download.get("toy", out=checkout / "other")
    monkeypatch.delenv("ALKIT_MIRROR")
    assert download.get("toy", out=checkout / "other")


def test_a_mirror_has_a_folder_for_sets_of_several_files(server, checkout):
    server.files = {f"/banking77/{name}.csv": b"text,category\n" for name in ("train", "test")}
    got = download.get("banking77", mirror=server.url)
    home = checkout / "data" / "banking77"
    assert [path for path, _ in got] == [home / "train.csv", home / "test.csv"]
    assert catalog.find("banking77") == home
    with pytest.raises(ValueError, match="no data set 'fashion'; there are ag_news, "):
        download.get("fashion")
    with pytest.raises(ValueError, match="emotion cannot be fetched: .*emotion/train.csv"):
        download.get("emotion")
    with pytest.raises(ValueError, match="digits comes with the packages"):
        download.get("digits")


def test_get_unpacks_what_is_read_unpacked_and_nothing_outside(server, checkout, monkeypatch):
    entry(monkeypatch, server, "set", unpack=True)
    server.files["/official/set.tgz"] = tar(checkout, "toy/a.txt")
    got = download.get("toy")
    assert [path for path, _ in got] == [checkout / "data" / "toy" / "toy"]
    assert left(checkout / "data" / "toy") == ["toy"]
    asked = len(server.asked)
    assert download.get("toy") == [(checkout / "data" / "toy" / "toy", "")]
    assert len(server.asked) == asked
    shutil.rmtree(checkout / "data")
    server.files["/official/set.tgz"] = tar(checkout, "toy/a.txt", "../../../escaped.txt")
    with pytest.raises(ValueError, match="set.tgz: refused, .*escaped.txt leaves the folder"):
        download.get("toy")
    assert list(checkout.rglob("*.txt")) == []
