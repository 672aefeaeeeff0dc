"""The two lists of dependencies and the lock agree."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def _pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    entries = environment["dependencies"][-1]["pip"]
    pairs = (entry.split("==") for entry in entries if not entry.startswith("-e"))
    return {canonicalize_name(name): version for name, version in pairs}


def _declared() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    extras = [line for name in set(optional) - {"all"} for line in optional[name]]
    requirements = [Requirement(line) for line in [*project["dependencies"], *extras]]
    return {canonicalize_name(one.name): one for one in requirements}


def test_a_lower_bound_is_the_version_that_is_run():
    bounds = {name: [*one.specifier][0].version for name, one in _declared().items()}
    assert bounds == _pins()


def _lock() -> dict[str, str]:
    lines = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+ --hash=sha256:[0-9a-f]{64}", row) for row in rows)
    pairs = (row.partition(" ")[0].split("==") for row in rows)
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_lock_holds_every_pin_what_builds_alkit_and_all_that_these_need():
    """A pin that was changed without `make lock` is seen here; no line names an address."""
    lock = _lock()
    assert _pins().items() <= lock.items()
    assert "setuptools" in lock
    assert all(version == installed(name) for name, version in lock.items())
    lacking = {
        canonicalize_name(need.name)
        for name in lock
        for need in map(Requirement, distribution(name).requires or ())
        if (not need.marker or need.marker.evaluate({"extra": ""}))
    } - set(lock)
    assert not lacking


def installed(name: str) -> str:
    """Return the version in this environment, which may be built for another device."""
    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"{name} is not in this environment, which is not of the lock")
