"""The dashboard of the four lanes, driven by value."""

import pytest

from alkit.split.planner import Workload
from alkit.split.profile import Unit
from alkit.split.schedule import LANES
from alkit.split.times import Line, iteration_s, lower_bound_s
from studies.split.lanes_widget import LaneDashboard


def test_sliders_move_the_lanes_as_the_recurrence_says():
    unit = Unit(Line(each=1e-4), Line(each=2e-4), 1e-4, 1e4, 1000)
    dashboard, spans = LaneDashboard([unit] * 3, Workload(20, 100, 3072.0)), []
    assert dashboard.timeline.resources == LANES
    for count in (1, 2, 4, 20):
        dashboard.micro.value = count
        lanes = dashboard.timeline
        spans.append(lanes.span_s)
        assert sum(i.kind == "send" for i in lanes.intervals) == 2 * count
        ends = [i.end_s for i in lanes.intervals if i.resource == "device"]
        assert max(ends) == pytest.approx(iteration_s(dashboard.times, [20 // count] * count))
    assert spans == sorted(spans, reverse=True)
    dashboard.up.value = 100
    assert dashboard.timeline.span_s < spans[-1]
    dashboard.slower.value = 50
    assert f"{lower_bound_s(dashboard.times, 20):.3f} s" in dashboard.report.value
