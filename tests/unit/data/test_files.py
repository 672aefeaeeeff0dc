"""Files are whole at any moment, and what killed processes leave is removed."""

import os
import subprocess
import sys

import pytest

from alkit.data.files import clean, replacing


def test_the_file_takes_its_place_when_the_block_has_ended(tmp_path):
    path = tmp_path / "made" / "table.csv"
    with replacing(path) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def half():
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_dead_processes_are_removed_and_nothing_else(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    parent = os.getppid()
    left = [f".run.pt.{dead.pid}.partial", f".run.pt.{os.getpid()}.partial"]
    kept = ["run.pt", f".run.pt.{parent}.partial", f".other.pt.{dead.pid}.partial"]
    kept += [".run.pt.x.partial", f".runxpt.{dead.pid}.partial"]
    for name in left + kept:
        (tmp_path / name).write_bytes(b"half")
    clean(tmp_path / "run.pt")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept)
    clean(tmp_path / "no folder" / "run.pt")
