"""Dashboards of studies: what they count, by formulas; pictures: see `test_dashboards.py`."""

import math
from dataclasses import replace

import pytest
import torch

from alkit.al.codes import code_table
from alkit.al.recipes import find_recipe
from studies.al.label_training import Variant
from studies.al.labels_widget import LabelPlateau
from studies.ladder.codes_widget import CodeAngles, codes, floor


def test_labels_of_the_original_stay_on_a_plateau_and_fixed_codes_do_not():
    original = find_recipe("original", "images")
    fixed = replace(original, codes="fixed", first_loss="cross_entropy")
    variants = {"original": Variant(original), "fixed": Variant(fixed)}
    board = LabelPlateau(variants, classes=20, code_dim=64, epochs=3, steps=20)
    assert board.stalled
    assert board.constant == pytest.approx(0.0475)
    pairs = zip(board.spreads, board.spreads[1:], strict=False)
    assert all(below > 4 * above for below, above in pairs)
    board.variant.value = "fixed"
    assert board.escape == 1
    assert not board.stalled
    assert len(set(board.spreads)) == 1


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
    dashboard.centred.value = True
    assert dashboard.rho < 0
    assert torch.equal(codes("tanh", 5), codes("tanh", 5))
    assert not torch.equal(codes("random", 5, seed=1), codes("random", 5, seed=2))
