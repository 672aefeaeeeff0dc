"""The two lists of dependencies agree, and every way to fail of the set-up is one sentence."""

import errno
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(
    "help demo test soak flower browser gpu install lock lab run sweep results site strip"
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


def test_environment_has_condas_form():
    environment = _environment()
    assert set(environment) == {"name", "channels", "dependencies"}
    assert environment["name"] == "alkit"
    *conda, pip = environment["dependencies"]
    assert all(isinstance(entry, str) for entry in conda)
    assert "pip" in conda
    assert set(pip) == {"pip"}
    assert len(_pins()) == len(pip["pip"]) - 1
    assert pip["pip"][-1] == "-e ."


def test_every_entry_but_alkit_itself_is_an_exact_pin():
    entries = [entry for entry in _pip_list() if entry != "-e ."]
    assert all(re.fullmatch(r"[\w.-]+==\d+(\.\d+)*", entry) for entry in entries), entries


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


def test_make_lock_keeps_names_versions_and_hashes_and_no_address(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    names = [("Torch", "2.0", "a" * 64), ("numpy", "1.0", "b" * 64)]
    report = [
        {
            "metadata": {"name": name, "version": version},
            "download_info": {
                "url": "https://user:secret@example.org/x.whl",
                "archive_info": {"hashes": {"sha256": digest}},
            },
        }
        for name, version, digest in names
    ]

    def fake(command: list, check: bool) -> None:
        words = list(map(str, command))
        if "--report" in words:
            assert {f"{name}=={version}" for name, version in _pins().items()} <= set(words)
            assert words[words.index("--python-version") + 1].endswith(".0")
            written = json.dumps({"install": report})
            Path(words[words.index("--report") + 1]).write_text(written, encoding="utf-8")

    script = runpy.run_path(str(ROOT / ".ci" / "lock.py"))
    own = script["main"].__globals__
    monkeypatch.setitem(own, "subprocess", SimpleNamespace(run=fake))
    monkeypatch.setitem(own, "LOCK", tmp_path / "lock")
    monkeypatch.setitem(own, "ROOT", tmp_path)
    monkeypatch.setitem(own, "pins", lambda text: _pip_list())
    (tmp_path / "environment.yml").touch()
    script["main"]()
    head, _, *rows = (tmp_path / "lock").read_text(encoding="utf-8").splitlines()
    assert head == f"# {script['platform_name']()}"
    wanted = [f"numpy==1.0 --hash=sha256:{'b' * 64}", f"torch==2.0 --hash=sha256:{'a' * 64}"]
    assert rows == wanted
    assert "has 2 distributions" in capsys.readouterr().out


def installed(name: str) -> str:
    """Return the version in this environment, which may be built for another device."""
    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        pytest.skip(f"{name} is not in this environment, which is not of the lock")


def test_what_is_declared_has_been_run():
    project = _pyproject()["project"]
    named = [each for each in project["classifiers"] if re.search(r":: (3\.|POSIX|OS Ind)", each)]
    assert named == ["Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3.11"]
    assert project["requires-python"] == ">=3.11"


def test_the_five_systems_are_cited():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    titles = "Associated Learning,PiPar,model parallelism,PipeTransformer,Target Propagation by"
    assert len(cited) == 5
    for words, reference in zip(titles.split(","), cited, strict=True):
        assert words in reference["title"]
        assert reference["authors"][0]["family-names"]
        assert reference["year"]


def test_python_pin_is_within_requires_python():
    (pin,) = (d for d in _environment()["dependencies"] if str(d).startswith("python="))
    project = _pyproject()["project"]
    assert pin.removeprefix("python=") in SpecifierSet(project["requires-python"])
    assert any(c.endswith(pin.removeprefix("python=")) for c in project["classifiers"])


# ---- .ci/install.py ----


@pytest.fixture
def install() -> ModuleType:
    """The installer as a fresh module, whose faked parts no other test sees."""
    spec = importlib.util.spec_from_file_location("alkit_install", ROOT / ".ci" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Run the installer on a folder; return the sentence it ends with, "" where it succeeds."""

    def main(venv: Path) -> str:
        monkeypatch.setattr(sys, "argv", ["install.py", str(venv)])
        try:
            install.main()
        except SystemExit as end:
            _assert_one_sentence(str(end.code))
            return end.code
        return ""

    return main


def _assert_one_sentence(text: str) -> None:
    assert text.strip(), "no sentence at all"
    assert len(text.strip().splitlines()) == 1, text
    assert "Traceback" not in text


def _our_venv(folder: Path) -> Path:
    """Return what an interrupted install of ours leaves: an environment with pip only."""
    _executable(folder / "bin" / "python", "exit 0")
    (folder / "alkit-unfinished").touch()
    (folder / "pyvenv.cfg").touch()
    return folder


def _foreign_venv(folder: Path, packages: dict[str, str]) -> Path:
    _executable(folder / "bin" / "python", "exit 0")
    for name, version in packages.items():
        info = folder / f"lib/python3.11/site-packages/{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
    return folder


def _executable(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def _pip_that_says(install: ModuleType, monkeypatch: pytest.MonkeyPatch, errors: str) -> list:
    """Let pip end with these errors (none: success); return the list of its calls."""
    calls, real = [], subprocess.run

    def fake(command: list, **options: object) -> subprocess.CompletedProcess:
        if "install" not in command:
            return real(command, **options)
        calls.append([str(word) for word in command])
        return subprocess.CompletedProcess(command, int(bool(errors)), stderr=errors)

    monkeypatch.setattr(install, "subprocess", SimpleNamespace(run=fake, PIPE=subprocess.PIPE))
    return calls


def test_pip_installs_exactly_the_list_of_environment_yml(install):
    assert install.pins((ROOT / "environment.yml").read_text()) == _pip_list()


def test_no_room(install, call, monkeypatch, tmp_path):
    usage = SimpleNamespace(total=2**40, used=2**40, free=2**30)
    monkeypatch.setattr(install, "shutil", SimpleNamespace(disk_usage=lambda place: usage))
    said = call(tmp_path / "deep" / "venv")
    assert "takes about 9 GiB" in said
    assert "has 1.0 GiB free" in said
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("pip_says", "sentence"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
            "'<HTTPSConnection>: Failed to establish a new connection: [Errno -3]')': /simple/\n"
            "ERROR: Could not find a version that satisfies the requirement torch==2.14.1\n"
            "ERROR: No matching distribution found for torch==2.14.1\n",
            "index could not be reached",
        ),
        ("ERROR: ReadTimeoutError: Read timed out.\n", "index could not be reached"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n",
            "another file than the one that the lock names",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on"
            " device\n",
            "disk ran full",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version\n"
            "ERROR: No matching distribution found for torch==2.14.1\n\n[notice] a newer pip\n",
            "No matching distribution found for torch==2.14.1",
        ),
    ],
)
def test_pip_fails(install, call, monkeypatch, tmp_path, pip_says, sentence):
    _pip_that_says(install, monkeypatch, pip_says)
    monkeypatch.setattr(install, "check_room", lambda venv: None)
    venv = _our_venv(tmp_path / "venv")
    assert sentence in call(venv)
    assert not (venv / "alkit-installed").exists()


def test_second_call_installs_nothing(install, call, monkeypatch, tmp_path, capsys):
    calls = _pip_that_says(install, monkeypatch, "")
    monkeypatch.setattr(install, "check_room", lambda venv: None)
    monkeypatch.setattr(install, "platform_name", lambda: _platform_of_the_lock(install))
    venv = _our_venv(tmp_path / "venv")
    assert call(venv) == ""
    locked, own = calls
    assert {"--require-hashes", str(install.LOCK)} < set(locked)
    assert {"--no-deps", "--no-build-isolation", "--editable", "."} < set(own)
    assert not (venv / "alkit-unfinished").exists()
    capsys.readouterr()
    assert call(venv) == ""
    assert len(calls) == 2
    assert capsys.readouterr().out == ""


def _platform_of_the_lock(install: ModuleType) -> str:
    return install.LOCK.read_text().partition("\n")[0].removeprefix("# ")


def test_a_platform_without_a_lock_is_told_and_has_the_pins(
    install, call, monkeypatch, tmp_path, capsys
):
    calls = _pip_that_says(install, monkeypatch, "")
    monkeypatch.setattr(install, "check_room", lambda venv: None)
    monkeypatch.setattr(install, "platform_name", lambda: "CPython 3.13 on darwin arm64")
    assert call(_our_venv(tmp_path / "venv")) == ""
    (pinned,) = calls
    assert {f"{name}=={version}" for name, version in _pins().items()} <= set(pinned)
    assert {"-e", "."} < set(pinned)
    said = capsys.readouterr().out
    assert "this is CPython 3.13 on darwin arm64, which nobody has tried: the pins" in said
    assert _platform_of_the_lock(install) in said


def test_an_interrupted_install_is_taken_up_again(install, call, monkeypatch, tmp_path):
    monkeypatch.setattr(install, "check_room", lambda venv: None)
    venv = tmp_path / "venv"
    _pip_that_says(install, monkeypatch, "ERROR: Connection reset, Read timed out.")
    assert "call again" in call(venv)  # a real environment, made with a real venv module
    calls = _pip_that_says(install, monkeypatch, "")
    assert call(venv) == ""
    assert calls[0][0] == str(venv / "bin" / "python")


def test_a_folder_with_other_things_is_never_cleared(install, call, monkeypatch, tmp_path):
    calls = _pip_that_says(install, monkeypatch, "")
    monkeypatch.setattr(install, "check_room", lambda venv: None)
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "stays as it is" in call(tmp_path)
    assert "stays as it is" in call(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert not calls


def test_a_foreign_environment_with_a_wrong_pin(call, tmp_path):
    packages = _pins() | {"torch": "1.0"}
    del packages["nbval"]
    said = call(_foreign_venv(tmp_path / "venv", packages))
    pins = _pins()
    assert f"torch 1.0 (wanted {pins['torch']}), nbval missing (wanted {pins['nbval']})" in said
    assert said.count("wanted") == 2


def test_a_foreign_environment_that_fits_is_left_alone(install, call, monkeypatch, tmp_path):
    """Whatever way its names are written, and with torch built for the CPU alone."""
    calls = _pip_that_says(install, monkeypatch, "")
    packages = _pins() | {"torch": _pins()["torch"] + "+cpu"}
    packages["pre_commit"], packages["PyYAML"] = packages.pop("pre-commit"), packages.pop("pyyaml")
    venv = _foreign_venv(tmp_path / "venv", packages)
    before = sorted(venv.rglob("*"))
    assert call(venv) == ""
    assert not calls
    assert sorted(venv.rglob("*")) == before


# ---- .ci/install and make, as processes ----


def _sh(*command: str, path: str, **env: str) -> subprocess.CompletedProcess:
    """Run a command; only a hang takes as long as its limit."""
    return subprocess.run(
        command, cwd=ROOT, env={"PATH": path, **env}, capture_output=True, text=True, timeout=600
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH that holds what sh scripts need, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "dirname"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def test_a_python_that_is_too_old(tools):
    old = "import sys; sys.version_info = (3, 8, 10); exec(sys.argv[1])"
    shown = "[ $1 = --version ] && echo Python 3.8.10 && exit 0"
    _executable(tools / "python3", f'{shown}\n"{sys.executable}" -c "{old}" "$2"')
    done = _sh("sh", ".ci/install", "never-made", path=str(tools))
    assert done.returncode == 1
    _assert_one_sentence(done.stderr)
    assert "needs Python 3.11 or newer and found Python 3.8.10" in done.stderr
    assert not (ROOT / "never-made").exists()


def test_no_python_at_all(tools):
    done = _sh("sh", ".ci/install", "never-made", path=str(tools))
    assert done.returncode == 1
    _assert_one_sentence(done.stderr)
    assert "found no Python" in done.stderr


@pytest.mark.parametrize("given", ["PYTHON", "PATH"])
def test_a_newer_python_is_found(tools, tmp_path, given):
    """By name, or behind an old python3; seen by the installer's message about a wrong folder."""
    _executable(tools / "python3", "exit 1")
    if given == "PATH":
        (tools / "python3.11").symlink_to(sys.executable)
    env = {"PYTHON": sys.executable} if given == "PYTHON" else {}
    wrong = _foreign_venv(tmp_path / "venv", {"torch": "1.0"})
    done = _sh("sh", ".ci/install", str(wrong), path=str(tools), **env)
    assert done.returncode == 1
    _assert_one_sentence(done.stderr)
    assert "torch 1.0 (wanted" in done.stderr


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    script = str(ROOT / ".ci" / "install.py")
    done = _sh(sys.executable, script, str(tmp_path / "file" / "venv"), path=os.environ["PATH"])
    assert done.returncode == 1
    _assert_one_sentence(done.stderr)


def test_a_broken_stamp(tmp_path):
    (tmp_path / "alkit-installed").mkdir()
    script = str(ROOT / ".ci" / "install.py")
    done = _sh(sys.executable, script, str(tmp_path), path=os.environ["PATH"])
    assert done.returncode == 1
    _assert_one_sentence(done.stderr)
    assert "could not be made" in done.stderr


def test_the_disk_runs_full_outside_pip(monkeypatch, tmp_path):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "disk_usage", full)
    monkeypatch.setattr(sys, "argv", ["install.py", str(tmp_path / "venv")])
    with pytest.raises(SystemExit, match="disk is full: free about 9 GiB") as end:
        runpy.run_path(str(ROOT / ".ci" / "install.py"), run_name="__main__")
    _assert_one_sentence(str(end.value))


def test_make_alone_lists_every_target():
    if shutil.which("make") is None:
        pytest.skip("needs make")
    done = _sh("make", path=os.environ["PATH"])
    assert done.returncode == 0
    listed = dict(re.findall(r"^  make (\w+) +(\S.*)$", done.stdout, flags=re.MULTILINE))
    assert set(listed) == TARGETS
    assert len(re.findall("^  make ", done.stdout, flags=re.MULTILINE)) == len(TARGETS)
    assert all(len(line) <= 110 for line in done.stdout.splitlines())
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(phony.group(1).split()) >= TARGETS
