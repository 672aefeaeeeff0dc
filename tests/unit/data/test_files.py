"""Files are whole at any moment, and what killed processes leave is removed."""

import subprocess
import sys

import pytest
from filelock import Timeout

from alkit.base.files import locked, replacing


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


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "run.pt"
    code = "import sys, time; from alkit.base.files import locked\n"
    code += f"with locked({str(path)!r}): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Timeout, match="run.pt.lock"):
            with locked(path):
                pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    with locked(path):
        with pytest.raises(Timeout, match="run.pt.lock"):
            with locked(path):
                pass
    with locked(path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [".run.pt.lock"]


def test_who_holds_a_file_removes_what_killed_runs_left_of_it(tmp_path):
    kept = ["run.pt", ".other.pt.a1.partial", ".runxpt.a1.partial"]
    for name in [".run.pt.a1.partial", *kept]:
        (tmp_path / name).write_bytes(b"half")
    with locked(tmp_path / "run.pt"):
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*kept, ".run.pt.lock"])
