"""Reading archives: the three forms are one, and what systems leave in them is passed over."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from alkit.data import archives

FILES = {"set/a.txt": b"first\n" * 500, "set/deep/b.bin": bytes(range(256)), "set/empty": b""}


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
    ((source, content),) = archives.contents(path, "a.txt")
    assert content == FILES["set/a.txt"]
    assert source == (f"{path}[set/a.txt]" if path.is_file() else f"{path}/set/a.txt")
    with pytest.raises(ValueError, match=f"{name}: there is no c.txt; it is another set or incom"):
        archives.contents(path, "a.txt", "c.txt")


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_what_systems_leave_is_passed_over(tmp_path, name, make):
    odd = ("__MACOSX/set/._a.txt", "set/._a.txt", "set/.ipynb_checkpoints/a.txt", ".DS_Store")
    path = make(tmp_path / name, FILES | dict.fromkeys(odd, b"of a system"))
    assert dict(archives.members(path)) == FILES


def test_links_in_a_folder_are_followed_once(tmp_path):
    disk = make_folder(tmp_path / "disk", {"a.txt": b"1"})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "deep").symlink_to(disk)
    for name in ("again", "and again"):  # two would have no end if each were followed
        (disk / name).symlink_to(tmp_path / "set")
    assert dict(archives.members(tmp_path / "set")) == {"deep/a.txt": b"1"}


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


@pytest.mark.parametrize(("name", "make"), FORMS[:3])
def test_a_file_larger_than_any_official_one_is_not_read(tmp_path, name, make, monkeypatch):
    path = make(tmp_path / name, {"zeros": bytes(1_000_000), "ok": b"1"})
    monkeypatch.setattr(archives, "MOST", 999_999)
    with pytest.raises(ValueError, match="refused, zeros has 1,000,000 bytes, at most 999,999"):
        dict(archives.members(path))
    assert dict(archives.members(path, lambda member: member == "ok")) == {"ok": b"1"}


def test_another_file_is_no_archive_and_links_in_one_are_no_files(tmp_path):
    (tmp_path / "x.rar").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"x.rar: no .zip, .tgz, .tar.gz or .tar and no folder"):
        dict(archives.members(tmp_path / "x.rar"))
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("odd")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert dict(archives.members(tmp_path / "x.tar")) == {}
