"""The two lists of dependencies agree, and the set-up installs the lock."""

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(
    "help demo test soak flower browser gpu install lock lab run sweep site outputs strip"
    " lint clean".split()
)


def _environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def _pip_list() -> list[str]:
    return _environment()["dependencies"][-1]["pip"]


def _pins() -> dict[str, str]:
    pairs = (entry.split("==") for entry in _pip_list() if not entry.startswith("-e"))
    return {canonicalize_name(name): version for name, version in pairs}


def _declared() -> dict[str, Requirement]:
    project = _pyproject()["project"]
    optional = project["optional-dependencies"]
    # "all" repeats the others
    extras = [line for name in set(optional) - {"all"} for line in optional[name]]
    requirements = [Requirement(line) for line in [*project["dependencies"], *extras]]
    declared = {canonicalize_name(one.name): one for one in requirements}
    assert {str(one) for one in declared.values()} == {str(one) for one in requirements}
    return declared


def _pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_pins_and_ranges_name_the_same_packages():
    assert set(_pins()) == set(_declared())


@pytest.mark.parametrize("name", sorted(_declared()))
def test_a_lower_bound_is_the_version_that_is_run(name):
    (bound,) = _declared()[name].specifier
    assert bound.operator in (">=", "==")
    assert bound.version == _pins()[name]


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


def test_the_lock_is_for_every_release_of_its_python():
    """Debian 12 has 3.11.2, and a distribution asked for 3.11.5."""
    first = f"{_environment()['dependencies'][0].removeprefix('python=')}.0"
    asked = {name: distribution(name).metadata["Requires-Python"] or "" for name in _lock()}
    assert not {name for name, said in asked.items() if first not in SpecifierSet(said)}


def installed(name: str) -> str:
    """Return the version in this environment, which may be built for another device."""
    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"{name} is not in this environment, which is not of the lock")


def test_python_pin_is_within_requires_python():
    (pin,) = (d for d in _environment()["dependencies"] if str(d).startswith("python="))
    project = _pyproject()["project"]
    assert pin.removeprefix("python=") in SpecifierSet(project["requires-python"])
    assert any(c.endswith(pin.removeprefix("python=")) for c in project["classifiers"])


# ---- .ci/install, with a Python that only notes what it is asked


def test_make_alone_lists_every_target():
    if shutil.which("make") is None:
        pytest.skip("needs make")
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    listed = dict(re.findall(r"^  make (\w+) +(\S.*)$", done.stdout, flags=re.MULTILINE))
    assert set(listed) == TARGETS
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(phony.group(1).split()) >= TARGETS
