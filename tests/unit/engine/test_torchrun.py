"""The guide's script for several machines, run by torchrun: on two made-up ones, or on one."""

import re
import subprocess
import sys

import pytest

from alkit.base.paths import root
from tests import machines


def _loss(said: str) -> str:
    return re.search(r"mean loss ([0-9.]+)", said).group(1)


@pytest.mark.machines
def test_the_guide_s_script_has_the_loss_of_one_process(tmp_path):
    page = (root() / "docs/guide/processes.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [code for code in codes if "torchrun_group" in code]
    (tmp_path / "train.py").write_text(code)
    if machines.can_be_made():
        line = re.search(r"torchrun (.*) train\.py", page).group(1)
        line = line.replace("HOST", machines.ADDRESSES[0])
        codes, said = machines.on_two(line, str(tmp_path / "train.py"), disks=tmp_path)
        assert codes == [0, 0], said[-3000:]
    else:
        done = machines.on_one(str(tmp_path / "train.py"))
        assert done.returncode == 0, done.stderr[-2000:]
        said = done.stdout

    code = code.replace("with alkit.torchrun_group():", "if True:")
    code = code.replace("dist.get_rank()", "0").replace('executor="ranks"', "workers=2")
    own = {"env": machines.environment(), "capture_output": True, "text": True, "check": True}
    assert _loss(said) == _loss(subprocess.run([sys.executable, "-c", code], **own).stdout)
