"""Dashboards of studies: what they show follows what is chosen, by formulas where there are any."""

import math
from dataclasses import replace

import pytest
import torch

from alkit.al.codes import code_table
from alkit.al.recipes import find_recipe
from alkit.schedule.timeline import Interval, Timeline
from studies.al.label_training import Variant
from studies.al.labels_widget import LabelPlateau
from studies.al.placement_widget import PlacementDashboard, peak_kept
from studies.ladder.codes_widget import CodeAngles, codes, floor


def test_al_fm_wants_round_robin_and_sliders_change_the_costs():
    dashboard = PlacementDashboard(layers=4, devices=2)
    assert dashboard.step_s("contiguous") == pytest.approx(2 * 3.5)
    for name in dashboard.placements:  # no placement beats two devices that never wait
        assert dashboard.step_s(name) >= 2 * 3.5 - 1e-9
    dashboard.schedule.value = "al_fm"
    assert dashboard.step_s("round_robin") < dashboard.step_s("contiguous")
    assert dashboard.step_s("best") <= dashboard.step_s("round_robin")
    assert "alkit-ready" in dashboard.report.value
    assert dashboard.picture.value[:4] == b"\x89PNG"
    dashboard = PlacementDashboard(layers=2, devices=1)
    before = dashboard.step_s("contiguous")
    dashboard.b.value = 4.0
    assert dashboard.step_s("contiguous") == pytest.approx(before + 2 * 2.0)


def test_gpipe_keeps_more_than_1f1b_and_what_waits_is_counted():
    dashboard = PlacementDashboard(layers=3, devices=3)
    kept = {}
    for name in ("gpipe", "1f1b", "zero_bubble"):
        dashboard.schedule.value = name
        kept[name] = dashboard.kept("contiguous")
    assert kept["1f1b"] <= kept["gpipe"] == 1.0
    dashboard.schedule.value = "al"
    assert dashboard.kept("contiguous") == 1.0
    rows = [("forward", 0, 0.0, 1.0), ("forward", 1, 1.0, 2.0), ("backward", 1, 2.0, 3.0)]
    rows += [("backward", 0, 3.0, 4.0), ("forward", 0, 4.0, 5.0)]
    timeline = Timeline.of([Interval("d", k, s, 0, 0, a, b) for k, s, a, b in rows], ["d", "e"])
    assert peak_kept(timeline) == {"d": 2.0, "e": 0.0}
    assert peak_kept(timeline, micro=2)["d"] == 1.0


ORIGINAL = find_recipe("original", "images")
VARIANTS = {
    "original": Variant(ORIGINAL),
    "fixed": Variant(replace(ORIGINAL, codes="fixed", first_loss="cross_entropy")),
}


def test_setting_a_value_draws_anew():
    board = LabelPlateau(VARIANTS, classes=20, code_dim=64, epochs=3, steps=20)
    assert board.stalled
    assert board.constant == pytest.approx(0.0475)
    pairs = zip(board.spreads, board.spreads[1:], strict=False)
    assert all(below > 4 * above for below, above in pairs)
    first = bytes(board.picture.value)
    assert first.startswith(b"\x89PNG")
    assert "not below it after 3 epochs" in board.report.value

    board.variant.value = "fixed"
    assert board.escape == 1
    assert not board.stalled
    assert len(set(board.spreads)) == 1
    assert bytes(board.picture.value) != first

    board.variant.value, board.classes.value = "original", 10
    assert board.constant == pytest.approx(0.09)


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
