"""A checkout of its own, with a folder of shared data."""

from pathlib import Path

import pytest

from alkit.base import paths


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `ALKIT_DATA`, in that of the checkout."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"
