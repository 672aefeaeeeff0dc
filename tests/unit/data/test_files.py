"""Where sets lie, how they are fetched and read; files are whole at any moment."""

import hashlib
import subprocess
import sys

import pytest
from filelock import Timeout

from alkit.base.files import locked, replacing
from alkit.data import archives, datasets
from tests.unit.data.made import packed

FILES = {"set/a.txt": b"first\n" * 500, "set/deep/b.bin": bytes(range(256)), "set/empty": b""}


@pytest.mark.parametrize("name", ["s.zip", "s.tgz", "s.tar.gz"])
def test_files_are_the_same_in_each_form_and_none_is_larger_than_an_official_one(
    tmp_path, monkeypatch, name
):
    path = packed(tmp_path / name, FILES)
    assert archives.files(path, "", parts=3) == FILES
    assert archives.files(path, r"\.txt$", parts=2) == {"set/a.txt": FILES["set/a.txt"]}
    assert archives.files(path, r"\.(txt|bin)$").keys() == {"a.txt", "b.bin"}
    monkeypatch.setattr(archives, "MOST", 256)
    assert archives.files(path, "b.bin").keys() == {"b.bin"}
    with pytest.raises(ValueError, match=r"set/a.txt has 3,000 bytes"):
        archives.files(path, "a.txt")


@pytest.fixture
def home(shared, monkeypatch):
    """A checkout, and a catalogue of one file that lies at a file's address."""
    source = shared.parent / "away" / "set.zip"
    source.parent.mkdir()
    source.write_bytes(b"content")
    remote = [source.as_uri(), hashlib.sha256(b"content").hexdigest()]
    entry = {"files": ["set*.zip", "copy.csv"], "remotes": [remote]}
    monkeypatch.setattr(datasets, "sets", lambda: {"set": entry})
    return shared.parent


def test_a_set_is_fetched_and_then_found_and_another_file_at_the_address_is_not_kept(home):
    with pytest.raises(FileNotFoundError, match=r"fetch\('set'\) downloads it"):
        datasets.find("set")
    assert [*datasets.fetch("set").iterdir()] == [home / "data" / "set" / "set.zip"]
    assert datasets.find("set").read_bytes() == b"content"
    datasets.find("set").unlink()
    (home / "away" / "set.zip").write_bytes(b"other")
    with pytest.raises(RuntimeError, match="invalid hash value"):
        datasets.fetch("set")
    assert not list((home / "data" / "set").iterdir())


def test_a_whole_set_comes_before_a_part_and_alkit_data_before_data(home):
    def put(name):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"")
        return datasets.find("set").relative_to(home).as_posix()

    assert put("data/copy.csv") == "data/copy.csv"
    assert put("data/set/inner/set_part.zip") == "data/set/inner/set_part.zip"
    assert put("shared/set_part.zip") == "shared/set_part.zip"
    assert put("data/far/too/deep/set.zip") == "shared/set_part.zip"
    assert put("data/any/set.zip") == "data/any/set.zip"
    assert put("shared/set.zip") == "shared/set.zip"


def test_every_entry_says_how_to_get_it():
    for name, entry in datasets.sets().items():
        assert entry.get("remotes") or entry.get("how"), name
        assert all(not sha256 or len(sha256) == 64 for _, sha256 in entry.get("remotes", ()))


def test_a_file_takes_its_place_when_the_block_has_ended_and_links_stay(tmp_path):
    path, link = tmp_path / "made" / "table.csv", tmp_path / "link.csv"
    link.symlink_to(path)
    for place, content in ((path, "old"), (link, "new")):
        with replacing(place) as partial:
            partial.write_text(content)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == content

    def half():
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "new"
    assert link.is_symlink()
    assert [*path.parent.iterdir()] == [path]


def test_a_lock_ends_with_its_process_and_removes_what_killed_runs_left(tmp_path):
    path = tmp_path / "run.pt"
    kept = [".other.pt.a1.partial", ".run.pt.lock", ".runxpt.a1.partial", "run.pt"]
    code = "import sys, time; from alkit.base.files import locked\n"
    code += f"with locked({str(path)!r}): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        for name in [".run.pt.a1.partial", *kept]:
            (tmp_path / name).touch()
        with pytest.raises(Timeout, match="run.pt.lock"), locked(path):
            pass
        other.kill()
    for _ in range(2):
        with locked(path):
            assert sorted(each.name for each in tmp_path.iterdir()) == kept
            with pytest.raises(Timeout, match="run.pt.lock"), locked(path):
                pass
