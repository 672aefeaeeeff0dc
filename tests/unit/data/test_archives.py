"""Reading archives: both forms are one."""

import io
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


FORMS = [("s.zip", make_zip), ("s.tgz", make_tar), ("s.tar.gz", make_tar)]


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_files_are_the_same_in_each_form(tmp_path, name, make):
    path = make(tmp_path / name, FILES)
    assert archives.files(path, "", parts=3) == FILES
    assert archives.files(path, r"\.txt$", parts=2) == {"set/a.txt": FILES["set/a.txt"]}
    assert archives.files(path, r"\.(txt|bin)$").keys() == {"a.txt", "b.bin"}


@pytest.mark.parametrize(("name", "make"), [("set.zip", make_zip), ("set.tgz", make_tar)])
def test_a_file_larger_than_any_official_one_is_not_unpacked(tmp_path, monkeypatch, name, make):
    path = make(tmp_path / name, {"a/small.txt": b"1", "a/large.txt": bytes(100)})
    monkeypatch.setattr(archives, "MOST", 50)
    assert archives.files(path, "small") == {"small.txt": b"1"}
    with pytest.raises(ValueError, match="large.txt has 100 bytes"):
        archives.files(path, "large")
