"""The accelerator that tests run on: a real one, or the simulated one where ALKIT_SIM is set.

`make gpu` has the real one; `docs/devices.md` has what was seen there.
"""

import os

import pytest
import torch

SIM = bool(os.environ.get("ALKIT_SIM"))
if SIM:
    from tests.sim.device import start

    start()
KIND = torch.accelerator.current_accelerator(check_available=True)
COUNT = torch.accelerator.device_count() if KIND else 0
ONE = f"{KIND.type}:0" if KIND else "cpu"
ALL = [f"{KIND.type}:{at}" for at in range(COUNT)] if KIND else []
two = pytest.mark.skipif(COUNT < 2, reason="one accelerator here: two are needed")


def need_one() -> None:
    """Skip a file of tests where there is no accelerator."""
    if not COUNT or (SIM and COUNT < 2):
        pytest.skip(
            "no accelerator here, or no C++ compiler for the simulated one: see docs/devices.md",
            allow_module_level=True,
        )


def imported(row: object, model: object) -> None:
    """As a callback: let ranks import this file, so that they have the simulated accelerator."""
