"""Reading archives: the three forms are one, and what systems leave in them is passed over."""

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


def make_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


FORMS = [("s.zip", make_zip), ("s.tgz", make_tar), ("s.tar.gz", make_tar), ("s", make_folder)]


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_members_are_the_same_in_each_form(tmp_path, name, make):
    path = make(tmp_path / name, FILES)
    assert dict(archives.members(path, bool)) == FILES
    only = archives.members(path, lambda member: member.endswith(".txt"))
    assert dict(only) == {"set/a.txt": FILES["set/a.txt"]}
    assert archives.contents(path, "a.txt") == [FILES["set/a.txt"]]
    with pytest.raises(ValueError, match=f"{name} holds no c.txt: it is another set or incomplete"):
        archives.contents(path, "a.txt", "c.txt")


@pytest.mark.parametrize(("name", "make"), FORMS)
def test_what_systems_leave_is_passed_over(tmp_path, name, make):
    odd = ("__MACOSX/set/._a.txt", "set/._a.txt", "set/.ipynb_checkpoints/a.txt", ".DS_Store")
    path = make(tmp_path / name, FILES | dict.fromkeys(odd, b"of a system"))
    assert dict(archives.members(path, bool)) == FILES
