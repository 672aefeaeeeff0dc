"""What a dashboard counts, by its formula; pictures: see `test_dashboards.py`."""

import math

import pytest
import torch

from alkit.al.codes import code_table
from studies.ladder.codes_widget import floor


@pytest.mark.parametrize("classes", [4, 14, 40])
def test_the_floor_of_codes_that_all_have_one_angle(classes):
    """ln(1 + (C - 1) e^(-s (1 - rho))), rho being the cosine between any two codes."""
    spread = code_table(classes, 128)
    shared = torch.nn.functional.pad(spread, (0, 1), value=2.0)  # a direction that all have
    for rows, rho in ((spread, 0.0), (shared, 4.0 / 5.0)):
        for scale in (3.0, 10.0):
            expected = math.log1p((classes - 1) * math.exp(-scale * (1 - rho)))
            assert floor(rows, scale) == pytest.approx(expected, abs=1e-5)
