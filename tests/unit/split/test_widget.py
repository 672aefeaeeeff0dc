"""The dashboard of the four lanes, driven by value."""

import pytest

from alkit.split.planner import Workload
from alkit.split.profile import Machine, Unit
from alkit.split.schedule import LANES
from alkit.split.times import Line, iteration_s, lower_bound_s
from studies.split.lanes_widget import LaneDashboard


@pytest.fixture
def dashboard():
    unit = Unit(Line(each=1e-4), Line(each=2e-4), 1e-4, 1e4, 0.0, 1000)
    return LaneDashboard(Machine((unit, unit, unit)), Workload(20, 100, 3072.0))


def test_a_slider_moves_the_lanes(dashboard):
    spans = []
    for count in (1, 2, 5, 20):
        dashboard.micro.value = count
        spans.append(dashboard.timeline.span_s)
        kinds = [i for i in dashboard.timeline.intervals if i.kind == "send"]
        assert len(kinds) == 2 * count
    assert spans == sorted(spans, reverse=True)
    assert dashboard.timeline.resources == LANES


def test_the_picture_is_the_recurrence(dashboard):
    dashboard.micro.value = 4
    sizes = [5] * 4
    ends = [i.end_s for i in dashboard.timeline.intervals if i.resource == "device"]
    assert max(ends) == pytest.approx(iteration_s(dashboard.times, sizes))


def test_the_report_names_the_bound(dashboard):
    dashboard.slower.value = 50
    bound = lower_bound_s(dashboard.times, 20)
    assert f"{bound:.3f} s" in dashboard.report.value
    assert bytes(dashboard.picture.value).startswith(b"\x89PNG")


def test_a_faster_link_helps(dashboard):
    before = dashboard.timeline.span_s
    dashboard.up.value = 100
    assert dashboard.timeline.span_s < before
