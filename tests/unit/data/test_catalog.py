"""Where sets lie, and how they are fetched."""

import hashlib

import pytest

from alkit.base import paths
from alkit.data import datasets


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A checkout of its own, and a catalogue of one file that lies at a file's address."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    source = tmp_path / "away" / "set.zip"
    source.parent.mkdir()
    source.write_bytes(b"content")
    remote = [source.as_uri(), hashlib.sha256(b"content").hexdigest()]
    entry = {"files": ["set*.zip", "copy.csv"], "remotes": [remote]}
    monkeypatch.setattr(datasets, "sets", lambda: {"set": entry})
    return tmp_path


def test_a_set_is_fetched_and_then_found(home):
    with pytest.raises(FileNotFoundError, match=r"fetch\('set'\) downloads it"):
        datasets.find("set")
    assert [*datasets.fetch("set").iterdir()] == [home / "data" / "set" / "set.zip"]
    assert datasets.find("set").read_bytes() == b"content"


def test_another_file_at_the_address_is_not_kept(home):
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
        for _, sha256 in entry.get("remotes", ()):
            assert not sha256 or len(sha256) == 64
