"""The picture of the four lanes."""

import matplotlib as mpl
import pytest

from alkit.split.planner import Workload
from alkit.split.profile import Unit
from alkit.split.schedule import LANES
from alkit.split.times import Line, iteration_s, lower_bound_s
from studies.split import lanes_widget


def test_lanes_end_as_the_recurrence_says(capsys):
    mpl.use("agg")
    unit = Unit(Line(each=1e-4), Line(each=2e-4), 1e-4, 1e4, 1000)
    draw, spans = lanes_widget.draw, []
    for count in (1, 2, 4, 20):
        times, lanes = draw([unit] * 3, Workload(20, 100, 3072.0), micro=count)
        assert lanes.resources == LANES
        spans.append(lanes.span_s)
        assert sum(i.kind == "send" for i in lanes.intervals) == 2 * count
        ends = [i.end_s for i in lanes.intervals if i.resource == "device"]
        assert max(ends) == pytest.approx(iteration_s(times, [20 // count] * count))
    assert spans == sorted(spans, reverse=True)
    times, lanes = draw([unit] * 3, Workload(20, 100, 3072.0), micro=20, up=100, slower=50)
    assert f"{lower_bound_s(times, 20):.3f} s" in capsys.readouterr().out.splitlines()[-1]
