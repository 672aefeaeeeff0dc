"""The placement dashboard: what it shows follows what is chosen."""

import pytest

from alkit.schedule.timeline import Interval, Timeline
from studies.placement_widget import PlacementDashboard, peak_kept


def test_al_fm_wants_round_robin_and_the_pipeline_does_not_care():
    dashboard = PlacementDashboard(layers=4, devices=2)
    assert dashboard.step_s("contiguous") == pytest.approx(2 * 3.5)
    for name in dashboard.placements:  # no placement beats two devices that never wait
        assert dashboard.step_s(name) >= 2 * 3.5 - 1e-9
    dashboard.schedule.value = "al_fm"
    assert dashboard.step_s("round_robin") < dashboard.step_s("contiguous")
    assert dashboard.step_s("best") <= dashboard.step_s("round_robin")
    assert "alkit-ready" in dashboard.report.value
    assert dashboard.picture.value[:4] == b"\x89PNG"


def test_gpipe_keeps_more_than_1f1b():
    dashboard = PlacementDashboard(layers=3, devices=3)
    kept = {}
    for name in ("gpipe", "1f1b", "zero_bubble"):
        dashboard.schedule.value = name
        kept[name] = dashboard.kept("contiguous")
    assert kept["1f1b"] <= kept["gpipe"] == 1.0
    dashboard.schedule.value = "al"
    assert dashboard.kept("contiguous") == 1.0


def test_sliders_change_the_costs():
    dashboard = PlacementDashboard(layers=2, devices=1)
    before = dashboard.step_s("contiguous")
    dashboard.b.value = 4.0
    assert dashboard.step_s("contiguous") == pytest.approx(before + 2 * 2.0)


def test_what_waits_is_counted():
    rows = [("forward", 0, 0.0, 1.0), ("forward", 1, 1.0, 2.0), ("backward", 1, 2.0, 3.0)]
    rows += [("backward", 0, 3.0, 4.0), ("forward", 0, 4.0, 5.0)]
    timeline = Timeline.of([Interval("d", k, s, 0, 0, a, b) for k, s, a, b in rows], ["d", "e"])
    assert peak_kept(timeline) == {"d": 2.0, "e": 0.0}
    assert peak_kept(timeline, micro=2)["d"] == 1.0
