"""Fetching, against a real server on a free port of the loopback device."""

import hashlib
import io
import shutil
import tarfile
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alkit.data import catalog, download, paths
from alkit.data.catalog import Entry, Remote

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


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("checksum", ["", MD5, SHA])
def test_a_file_is_fetched_whole(server, tmp_path, checksum):
    target = tmp_path / "new" / "set.bin"
    assert download.fetch(f"{server.url}/set.bin", target, checksum=checksum) == SHA
    assert target.read_bytes() == CONTENT
    assert left(target.parent) == ["set.bin"]
    assert server.asked == [None]


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    target = tmp_path / "set.bin"
    target.write_bytes(CONTENT)
    assert download.fetch(f"{server.url}/set.bin", target, checksum=MD5) == SHA
    assert server.asked == []
    with pytest.raises(download.FetchError, match="set.bin is there, but .*; remove it"):
        download.fetch(f"{server.url}/set.bin", target, checksum="md5:0")
    assert target.read_bytes() == CONTENT


def test_a_cut_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.cuts = [100_000, 150_000]
    assert download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin") == SHA
    assert server.asked == [None, "bytes=100000-", "bytes=250000-"]
    assert left(tmp_path) == ["set.bin"]


def test_a_server_without_range_starts_again(server, tmp_path):
    server.cuts, server.ranges = [100_000], False
    assert download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin") == SHA
    assert server.asked == [None, "bytes=100000-"]


def test_a_file_that_changed_meanwhile_starts_again(server, tmp_path, monkeypatch):
    server.cuts = [100_000]

    def change(_: float) -> None:
        server.tag, server.files["/set.bin"] = '"2"', CONTENT[::-1]

    monkeypatch.setattr(download.time, "sleep", change)
    download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin")
    assert (tmp_path / "set.bin").read_bytes() == CONTENT[::-1]


def test_what_an_earlier_run_left_is_used_only_if_it_can_be_checked(server, tmp_path):
    (tmp_path / "set.bin.partial").write_bytes(CONTENT[:70_000])
    download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", checksum=SHA)
    assert server.asked == ["bytes=70000-"]
    (tmp_path / "other.bin.partial").write_bytes(b"of something else")
    download.fetch(f"{server.url}/set.bin", tmp_path / "other.bin")
    assert server.asked[1:] == [None]
    assert (tmp_path / "other.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_a_finished_or_too_long_rest_is_settled(server, tmp_path, extra):
    (tmp_path / "set.bin.partial").write_bytes(CONTENT + extra)
    assert download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", checksum=SHA) == SHA
    assert left(tmp_path) == ["set.bin"]


def test_a_wrong_checksum_removes_the_file_and_names_both(server, tmp_path):
    with pytest.raises(download.FetchError) as caught:
        download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", checksum="md5:" + "0" * 32)
    assert MD5.removeprefix("md5:") in str(caught.value)
    assert "0" * 32 in str(caught.value)
    assert left(tmp_path) == []


def test_a_wrong_size_is_refused_before_the_body_is_read(server, tmp_path):
    with pytest.raises(download.FetchError, match="300,000 bytes, expected 1,000"):
        download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", size=1000)
    assert left(tmp_path) == []


def test_no_room_is_said_with_both_numbers(server, tmp_path, monkeypatch):
    usage = namedtuple("Usage", "total used free")(10, 3, 7)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="no room in .*: 300,000 bytes needed, 7 free"):
        download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin")
    assert len(server.asked) == 1  # trying again would not make room


def test_a_missing_file_is_not_asked_for_again(server, tmp_path):
    with pytest.raises(download.FetchError, match="/none.bin: 404 Not Found"):
        download.fetch(f"{server.url}/none.bin", tmp_path / "none.bin")
    assert len(server.asked) == 1
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again_and_not_for_ever(server, tmp_path):
    server.codes = [503, 429, 500]
    assert download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", retries=3) == SHA
    server.codes, server.asked = [503] * 9, []
    with pytest.raises(download.FetchError, match="503 .* after 3 tries"):
        download.fetch(f"{server.url}/set.bin", tmp_path / "b.bin", retries=2)
    assert len(server.asked) == 3


def test_a_connection_that_breaks_each_time_keeps_what_came(server, tmp_path):
    server.cuts = [10, 10, 10]
    with pytest.raises(download.FetchError, match="30 of 300,000 bytes.*the next try goes on"):
        download.fetch(f"{server.url}/set.bin", tmp_path / "set.bin", retries=2, checksum=SHA)
    assert (tmp_path / "set.bin.partial").read_bytes() == CONTENT[:30]


def test_a_server_that_is_silent_is_given_up(tmp_path, monkeypatch):
    import socket

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/set.bin"
        with pytest.raises(download.FetchError, match="timed out after 2 tries"):
            download.fetch(url, tmp_path / "set.bin", retries=1, timeout_s=0.2)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/etc/passwd", "http:"])
def test_only_http_is_fetched(tmp_path, url):
    with pytest.raises(ValueError, match="only http:// and https:// addresses"):
        download.fetch(url, tmp_path / "x")


def test_a_redirect_to_another_scheme_is_refused(server, tmp_path):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "ftp://127.0.0.1/x")
        handler.end_headers()

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(download.FetchError, match="ftp"):
        download.fetch(f"{server.url}/set.bin", tmp_path / "x", retries=0)


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


def test_sets_of_several_files_lie_in_a_folder_of_their_name_on_a_mirror(server, checkout):
    server.files = {f"/banking77/{name}.csv": b"text,category\n" for name in ("train", "test")}
    got = download.get("banking77", mirror=server.url)
    assert [path.relative_to(checkout / "data" / "banking77").name for path, _ in got] == [
        "train.csv",
        "test.csv",
    ]
    assert catalog.find("banking77") == checkout / "data" / "banking77"


def tar(names: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


def test_get_unpacks_what_is_read_unpacked(server, checkout, monkeypatch):
    entry(monkeypatch, server, "set", unpack=True)
    server.files["/official/set.tgz"] = tar(["toy/a.txt"])
    got = download.get("toy")
    assert [path for path, _ in got] == [checkout / "data" / "toy" / "toy"]
    assert left(checkout / "data" / "toy") == ["toy"]
    asked = len(server.asked)
    assert download.get("toy") == [(checkout / "data" / "toy" / "toy", "")]
    assert len(server.asked) == asked


def test_get_unpacks_nothing_outside(server, checkout, monkeypatch):
    entry(monkeypatch, server, "set", unpack=True)
    server.files["/official/set.tgz"] = tar(["toy/a.txt", "../../../escaped.txt"])
    with pytest.raises(ValueError, match="set.tgz: refused, .*escaped.txt leaves the folder"):
        download.get("toy")
    assert list(checkout.rglob("*.txt")) == []


def test_get_says_what_cannot_be_fetched(checkout):
    with pytest.raises(ValueError, match="no data set 'fashion'; there are ag_news, "):
        download.get("fashion")
    with pytest.raises(ValueError, match="emotion cannot be fetched: .*emotion/train.csv"):
        download.get("emotion")
    with pytest.raises(ValueError, match="digits comes with the packages"):
        download.get("digits")
