"""The guide's script for several machines, run by torchrun: on one, and on two made-up ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from alkit.base.paths import root
from tests import machines


def _page() -> str:
    return (root() / "docs" / "guide.md").read_text()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.py as the guide has it."""
    codes = re.findall(r"```python\n(.*?)```", _page(), re.DOTALL)
    (code,) = [code for code in codes if "torchrun_group" in code]
    path = tmp_path_factory.mktemp("torchrun") / "train.py"
    path.write_text(code)
    return path


def said_by(script: Path, check: bool) -> subprocess.CompletedProcess[str]:
    own = {"env": machines.environment(), "timeout": machines.LIMIT_S, "check": check}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, **own)


@pytest.fixture(scope="module")
def alone(script: Path) -> str:
    """Return the loss of the same script in one process, on threads."""
    code = script.read_text().replace("with alkit.torchrun_group():", "if True:")
    code = code.replace("dist.get_rank()", "0").replace('executor="ranks"', "workers=2")
    (script.parent / "alone.py").write_text(code)
    return _loss(said_by(script.parent / "alone.py", check=True).stdout)


def _loss(output: str) -> str:
    return re.search(r"mean loss ([0-9.]+)", output).group(1)


def test_torchrun_on_one_machine(script, alone):
    done = machines.on_one(str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    assert _loss(done.stdout) == alone


def test_torchrun_on_two_machines(script, alone):
    if not machines.can_be_made():
        pytest.skip("no right to make network namespaces here, so no two machines")
    line = re.search(r"torchrun (.*) train\.py", _page()).group(1)
    line = line.replace("HOST", machines.ADDRESSES[0])
    codes, said = machines.on_two(line, str(script), disks=script.parent)
    assert codes == [0, 0], said[-3000:]
    assert _loss(said) == alone


def test_without_torchrun_torch_says_what_is_missing(script):
    said = "environment variable RANK expected, but not set"
    assert said in said_by(script, check=False).stderr
