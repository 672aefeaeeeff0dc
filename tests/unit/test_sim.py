"""What is run on accelerators, on the simulated one, in a process of its own.

torch can be told of one accelerator a process, and takes it for everybody's from then on.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ALL_SKIPPED = 5  # pytest's exit status


@pytest.mark.machines
def test_on_the_simulated_accelerator(tmp_path):
    command = [sys.executable, *"-m pytest -q -rs -p no:cacheprovider -W ignore".split()]
    ran = subprocess.run(
        [*command, "-o", "python_files=check_*.py test_*.py", TESTS / "sim", TESTS / "gpu"],
        cwd=TESTS.parent,
        # a killed build leaves a lock
        env=os.environ | {"ALKIT_SIM": "1", "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if ran.returncode == ALL_SKIPPED and "no C++ compiler" in ran.stdout:
        pytest.skip("no C++ compiler to make the simulated accelerator with")
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
