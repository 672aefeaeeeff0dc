"""What would be published: the source archive holds the checkout, the wheel the package alone."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools import build_meta as b; b.build_{kind}('dist')"


def _tracked() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout of git's")
    asked = ["git", "ls-files", "-z"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with what users add to it, and both distributions in `dist`."""
    copy = tmp_path_factory.mktemp("copy")
    left_behind = ("runs/a.json", "data/a.tar", "notebooks/.ipynb_checkpoints/a.ipynb")
    for name in (*_tracked(), *left_behind, "tests/__pycache__/a.pyc"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if name in left_behind or name.endswith(".pyc"):
            (copy / name).touch()
        else:
            shutil.copy(ROOT / name, copy / name)
    for kind in ("sdist", "wheel"):
        command = [sys.executable, "-c", BUILD.format(kind=kind)]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return copy / "dist"


def test_the_source_archive_holds_what_is_tracked_and_nothing_else(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {f.name.partition("/")[2] for f in archive.getmembers() if f.isfile()}
    made = {name for name in names if name.startswith("alkit.egg-info/")}
    assert names - made - {"PKG-INFO", "setup.cfg"} == {*_tracked()}


def test_the_wheel_holds_the_package_and_its_files(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name for name in _tracked() if name.startswith("alkit/")}
