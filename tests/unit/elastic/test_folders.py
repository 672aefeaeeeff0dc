"""A folder of stored features is gone with its run."""

import errno
import tempfile

import pytest

from alkit.engine.folders import Home


def test_a_folder_goes_with_its_block_whatever_ends_it(tmp_path):
    home = Home(tmp_path)
    (home.path / "features").write_bytes(b"x")
    with pytest.raises(KeyboardInterrupt), home:
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "advice"), [("cache", "give another cache_folder"), ("ranks", "set TMPDIR")]
)
def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch, kind, advice):
    with pytest.raises(OSError, match=advice):
        Home(tmp_path / "none", kind)

    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(OSError, match=f"No space left.*{advice}"):
        Home(tmp_path, kind)
