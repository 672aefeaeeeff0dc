"""A checkout of a test's own."""

import pytest

from alkit.base import paths
from tests.unit.lab.helpers import write_notebook

SETTINGS = ("ALKIT_RUN_FOLDER", "OMP_NUM_THREADS")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Let everything be written under an empty checkout, and no runner's settings reach a test."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def notebook(checkout):
    """A notebook in a checkout of its own."""
    return write_notebook(checkout / "notebooks")
