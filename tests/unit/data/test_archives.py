"""Reading and unpacking archives: the three forms are one, and nothing leaves the folder."""

import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from alkit.data import archives

FILES = {"set/a.txt": b"first\n" * 500, "set/deep/b.bin": bytes(range(256)), "set/empty": b""}
Usage = namedtuple("Usage", "total used free")


def make_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".tgz", ".gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


FORMS = [("s.zip", make_zip), ("s.tgz", make_tar), ("s.tar.gz", make_tar), ("s", make_folder)]


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_members_are_the_same_in_each_form(tmp_path, name, make):
    path = make(tmp_path / name, FILES)
    assert dict(archives.members(path)) == FILES
    only = archives.members(path, lambda member: member.endswith(".txt"))
    assert dict(only) == {"set/a.txt": FILES["set/a.txt"]}
    if path.is_file():
        assert archives.unpack(path, tmp_path / "out") == [tmp_path / "out" / "set"]
        assert dict(archives.members(tmp_path / "out")) == FILES
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["set"]  # no .partial is left


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_a_fingerprint_changes_with_size_and_time(tmp_path, name, make):
    path = make(tmp_path / name, FILES)
    file = path / "set" / "a.txt" if path.is_dir() else path

    def print_of(size: int, time_ns: int) -> str:
        file.write_bytes(bytes(size))
        os.utime(file, ns=(0, time_ns))
        return archives.fingerprint(path)

    assert print_of(5, 7) == print_of(5, 7)
    assert len({print_of(5, 7), print_of(6, 7), print_of(5, 8)}) == 3


@pytest.mark.parametrize(("name", "make"), FORMS[:3])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_cut_archive_is_named(tmp_path, name, make, share):
    path = make(tmp_path / name, {"x": bytes(i * i % 251 for i in range(100_000))})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = rf"{name}: damaged or incomplete.*fetch it again"
    with pytest.raises(ValueError, match=message):
        dict(archives.members(path))
    with pytest.raises(ValueError, match=message):
        archives.unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").glob("*")) == []


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/etc/out", "c:\\out", "a\\b"])
def test_names_that_leave_the_folder_are_refused(tmp_path, make, name):
    path = make(tmp_path / ("x.zip" if make is make_zip else "x.tgz"), {"ok": b"1", name: b"2"})
    with pytest.raises(ValueError, match=r"x\.(zip|tgz): refused, .* leaves the folder"):
        archives.unpack(path, tmp_path / "deep" / "out")
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [path.name]


@pytest.mark.parametrize("kind", ["SYMTYPE", "LNKTYPE", "CHRTYPE", "FIFOTYPE", "zip"])
def test_links_and_devices_are_refused(tmp_path, kind):
    path = tmp_path / ("x.zip" if kind == "zip" else "x.tgz")
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            member = zipfile.ZipInfo("odd")
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, "/etc/passwd")
    else:
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo("odd")
            member.type, member.linkname = getattr(tarfile, kind), "/etc/passwd"
            archive.addfile(member)
    with pytest.raises(ValueError, match="refused, odd is a link or a device"):
        archives.unpack(path, tmp_path / "out")
    assert not (tmp_path / "out" / "odd").is_symlink()


@pytest.mark.parametrize(("name", "make"), FORMS[:3])
def test_a_bomb_is_refused(tmp_path, name, make):
    path = make(tmp_path / name, {"zeros": bytes(1_000_000)})
    with pytest.raises(ValueError, match="holds 1,000,000 bytes, at most 999,999 are unpacked"):
        archives.unpack(path, tmp_path / "out", max_bytes=999_999)
    assert archives.unpack(path, tmp_path / "out", max_bytes=1_000_000)


def test_what_is_there_is_not_replaced_and_no_room_is_said_before(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "x.zip", {"set/a": b"new"})
    make_folder(tmp_path / "out", {"set/a": b"mine"})
    with pytest.raises(FileExistsError, match="set is there already; remove it"):
        archives.unpack(path, tmp_path / "out")
    assert (tmp_path / "out" / "set" / "a").read_bytes() == b"mine"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["set"]
    path = make_zip(tmp_path / "y.zip", {"zeros": bytes(1_000_000)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2_000_000, 1_999_000, 1_000))
    with pytest.raises(OSError, match="no room in .*out: 1,000,000 bytes needed, 1,000 free"):
        archives.unpack(path, tmp_path / "other" / "out")
    assert not (tmp_path / "other").exists()
    (tmp_path / "x.rar").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"x.rar: no .zip, .tgz, .tar.gz or .tar and no folder"):
        dict(archives.members(tmp_path / "x.rar"))
