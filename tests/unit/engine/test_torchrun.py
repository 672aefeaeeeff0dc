"""The README's script for several machines, run by torchrun: on one, and on two that are made up.

Two network namespaces with a cable between them are two machines, as far as sockets can tell.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from alkit.data.paths import root

FIRST, SECOND = "10.231.77.1", "10.231.77.2"
LIMIT_S = 900  # only a hang takes so long


def _page() -> str:
    return (root() / "README.md").read_text()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.py as the README has it."""
    codes = re.findall(r"```python\n(.*?)```", _page(), re.DOTALL)
    (code,) = [code for code in codes if "torchrun_group" in code]
    path = tmp_path_factory.mktemp("torchrun") / "train.py"
    path.write_text(code)
    return path


@pytest.fixture(scope="module")
def alone(script: Path) -> str:
    """Return the loss of the same script in one process, on threads."""
    code = script.read_text().replace("with torchrun_group():", "if True:")
    code = code.replace("dist.get_rank()", "0").replace('executor="ranks"', "workers=2")
    (script.parent / "alone.py").write_text(code)
    command = [sys.executable, str(script.parent / "alone.py")]
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return _loss(done.stdout)


def _torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root()), "OMP_NUM_THREADS": "1", **more}


def _loss(output: str) -> str:
    return re.search(r"mean loss ([0-9.]+)", output).group(1)


@contextmanager
def _two_machines() -> Iterator[tuple[str, str]]:
    """Make two namespaces, joined by a cable whose ends are both called eth0."""
    names = (f"alkit{os.getpid()}a", f"alkit{os.getpid()}b")
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", names[1]
        )
        for name, address in zip(names, (FIRST, SECOND), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _namespaces_can_be_made() -> bool:
    if shutil.which("ip") is None:
        return False
    name = f"alkit{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


def _started(name: str, command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *command],
        env=_environment(GLOO_SOCKET_IFNAME="eth0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_torchrun_on_one_machine(script, alone):
    done = subprocess.run(
        [*_torchrun("--standalone", "--nproc-per-node=2"), str(script)],
        env=_environment(GLOO_SOCKET_IFNAME="lo"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert _loss(done.stdout) == alone


def test_torchrun_on_two_machines(script, alone):
    if not _namespaces_can_be_made():
        pytest.skip("no right to make network namespaces here, so no two machines")
    line = re.search(r"torchrun (.*) train\.py", _page()).group(1).replace("HOST", FIRST)
    with _two_machines() as names:
        crew = [
            _started(name, [*_torchrun(*line.replace("RANK", str(rank)).split()), str(script)])
            for rank, name in enumerate(names)
        ]
        try:
            said = "".join(one.communicate(timeout=LIMIT_S)[0] for one in crew)
        finally:
            for one in crew:
                one.kill()
                one.communicate()
        assert [one.returncode for one in crew] == [0, 0], said[-3000:]
    assert _loss(said) == alone
