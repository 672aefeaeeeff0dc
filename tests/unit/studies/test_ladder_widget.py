"""The dashboard of label codes, against the formula of the floor."""

import math

import pytest
import torch

from alkit.al.codes import code_table
from studies.ladder_widget import CodeAngles, codes, floor


@pytest.mark.parametrize("classes", [4, 14, 40])
def test_the_floor_of_codes_that_all_have_one_angle(classes):
    """ln(1 + (C - 1) e^(-s (1 - rho))), rho being the cosine between any two codes."""
    spread = code_table(classes, 128)
    shared = torch.nn.functional.pad(spread, (0, 1), value=2.0)  # a direction that all have
    for rows, rho in ((spread, 0.0), (shared, 4.0 / 5.0)):
        for scale in (3.0, 10.0):
            expected = math.log1p((classes - 1) * math.exp(-scale * (1 - rho)))
            assert floor(rows, scale) == pytest.approx(expected, abs=1e-5)


def test_codes_of_a_sigmoid_point_one_way_until_they_are_centred():
    dashboard = CodeAngles(classes=14)
    assert dashboard.kind.value == "sigmoid"
    assert dashboard.rho > 0.95
    assert dashboard.floor > 2.0
    assert "mean cosine" in dashboard.report.value
    dashboard.centred.value = True
    assert dashboard.rho < 0
    assert dashboard.floor < 0.01
    dashboard.kind.value = "orthonormal"
    assert dashboard.rho == pytest.approx(-1 / 13, abs=1e-3)  # a simplex, once centred


def test_codes_are_a_function_of_their_seed():
    assert torch.equal(codes("tanh", 5), codes("tanh", 5))
    assert not torch.equal(codes("random", 5, seed=1), codes("random", 5, seed=2))
