"""What only a real accelerator can show. Run by `make gpu`; `docs/devices.md` has what was seen."""

import pytest
import torch

KIND = torch.accelerator.current_accelerator(check_available=True)
COUNT = torch.accelerator.device_count() if KIND else 0
ONE = f"{KIND.type}:0" if KIND else "cpu"
ALL = [f"{KIND.type}:{at}" for at in range(COUNT)] if KIND else []
two = pytest.mark.skipif(COUNT < 2, reason="one accelerator here: two are needed")


def need_one() -> None:
    """Skip a file of tests where there is no accelerator."""
    if not COUNT:
        pytest.skip(
            "no accelerator here: what these tests show stays untried, see docs/devices.md",
            allow_module_level=True,
        )
