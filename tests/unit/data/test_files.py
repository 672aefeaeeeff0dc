"""Files are whole at any moment, and what killed processes leave is removed."""

import os
import subprocess
import sys
import threading

import pytest

from alkit.base.files import clean, locked, replacing


def test_the_file_takes_its_place_when_the_block_has_ended_and_links_stay(tmp_path):
    path = tmp_path / "made" / "table.csv"
    with replacing(path) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
    place = tmp_path / "disk" / "run.pt"
    place.parent.mkdir()
    place.write_text("old")
    link = tmp_path / "run.pt"
    link.symlink_to(place)
    with replacing(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert place.read_text() == "new"
    assert [each.name for each in place.parent.iterdir()] == ["run.pt"]


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


def test_two_threads_write_one_path_and_clean_beside_each_other(tmp_path):
    path, both = tmp_path / "run.pt", threading.Barrier(2)

    def write(text):
        with replacing(path) as partial:
            partial.write_text(text)
            both.wait(60)
            clean(path)
            both.wait(60)
            assert partial.read_text() == text

    threads = [threading.Thread(target=write, args=(each * 1000,)) for each in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(path.read_text()) in ({"a"}, {"b"})
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "run.pt"
    code = "import sys, time; from alkit.base.files import locked\n"
    code += f"with locked({str(path)!r}): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match="in use by another run"):
            with locked(path):
                pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    with locked(path):
        with pytest.raises(RuntimeError, match="in use by another run"):
            with locked(path):
                pass
    with locked(path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [".run.pt.lock"]
