"""Folders of stored features: gone with their run, cleared if the run was killed."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from alkit.engine.folders import Home, clear, left_behind
from alkit.records import cli

KEEPS_ONE = """
import sys
from alkit.engine.folders import Home
home = Home(sys.argv[1])
(home.path / "features").write_bytes(bytes(1000))
print(home.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_with_its_block_and_what_is_none_stays(tmp_path):
    with Home(tmp_path) as home:
        (home.path / "features").write_bytes(b"x")
        assert list(tmp_path.iterdir()) == [home.path]
    assert not list(tmp_path.iterdir())
    with Home(tmp_path) as home:
        path = home.path
        (tmp_path / "alkit-cache-link").symlink_to(path)
    for name in ("alkit-cache-notes", "other"):
        (tmp_path / name).mkdir()  # no lock in it
    assert clear(tmp_path) == {}
    assert len(list(tmp_path.iterdir())) == 3


def test_a_killed_run_leaves_a_folder_and_it_is_cleared(tmp_path, capsys):
    command = [sys.executable, "-c", KEEPS_ONE, str(tmp_path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child, Home(tmp_path) as own:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        assert not list(left_behind(tmp_path))  # both are in use
        child.kill()
        child.wait()
        assert list(left_behind(tmp_path)) == [left]
        assert cli.main(["clear", str(tmp_path)]) == 0
        assert f"removed   {left} (0.0 MiB)" in capsys.readouterr().out
        assert not left.exists()
        assert own.path.exists()
    assert cli.main(["clear", str(tmp_path)]) == 0
    assert "nothing to remove" in capsys.readouterr().out


LAUNCHES = """
import time
from alkit import launch

def waits():
    print("rank runs", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    launch(waits, ranks=1)
"""


def test_a_killed_caller_leaves_its_ranks_folder_and_it_is_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = subprocess.Popen(
        [sys.executable, "-c", LAUNCHES],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with child:
        assert child.stdout is not None
        assert "rank runs" in child.stdout.readline()
        assert cli.main(["clear"]) == 0
        assert "nothing to remove" in capsys.readouterr().out
        child.kill()
        child.wait()
        (left,) = tmp_path.glob("alkit-ranks-*")
        assert cli.main(["clear"]) == 0
        assert f"removed   {left}" in capsys.readouterr().out
    assert not left.exists()


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    before = os.open

    def full(path, flags, *more, **options):
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return before(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left.*give another cache_folder"):
        Home(tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def test_sizes_and_errors(tmp_path, capsys):
    (tmp_path / "alkit-cache-a" / "generation-0").mkdir(parents=True)
    (tmp_path / "alkit-cache-a" / "lock").touch()
    (tmp_path / "alkit-cache-a" / "generation-0" / "features").write_bytes(bytes(300))
    assert clear(tmp_path) == {tmp_path / "alkit-cache-a": 300}
    assert cli.main(["clear", str(tmp_path / "none")]) == 2
    assert "give one that was a cache_folder" in capsys.readouterr().err
    with pytest.raises(OSError, match="give another cache_folder"):
        Home(tmp_path / "none")
