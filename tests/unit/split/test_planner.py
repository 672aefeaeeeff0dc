"""The recurrence against hand values and the clock; the planner against tables and brute force."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.schedule.clock import simulate
from alkit.schedule.task import ScheduleError
from alkit.schedule.validate import validate
from alkit.split.networks import build
from alkit.split.planner import Workload, candidates, times_at
from alkit.split.profile import Link, Unit, measure
from alkit.split.schedule import DEVICE, SERVER, split, split_sizes
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.times import Line, Times, fitted, iteration_s, lower_bound_s
from studies.split.lanes_widget import seconds_of

SECONDS = st.floats(0, 1)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.builds(Line, SECONDS, SECONDS), min_size=5, max_size=5), SECONDS, st.data())
def test_recurrence_is_the_clocks_end(lines, update, data):
    times = Times(*lines, update=update)
    sizes = split_sizes(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9)))
    timeline = simulate(split(len(sizes)), seconds_of(times, sizes).__getitem__, 1)
    end = max(i.end_s for i in timeline.intervals if (i.kind, i.stage) == ("update", 0))
    assert end == pytest.approx(iteration_s(times, sizes), abs=1e-12)
    assert iteration_s(times, sizes) >= lower_bound_s(times, sum(sizes)) - 1e-9 or times.up.fixed


@pytest.mark.parametrize("micro", [1, 5])
@pytest.mark.parametrize("returns", [True, False])
def test_schedule_is_valid_and_the_server_runs_a_micro_batch_backward_at_once(micro, returns):
    validate(split(micro, returns=returns), batches=4)
    assert "".join(task.kind[0] for task in split(3).one_batch(SERVER)) == "fbfbfbu"
    assert "".join(task.kind[0] for task in split(3).one_batch(DEVICE)) == "fffbbbu"


def test_a_line_is_fitted():
    line = fitted([10, 20, 40], [1.5, 2.0, 3.0])
    assert line == pytest.approx((1.0, 0.05))
    assert fitted([10, 20], [1, 2.5]).fixed == 0
    assert fitted([10], [5.0]) == pytest.approx((0.0, 0.5))
    with pytest.raises(ScheduleError):
        split_sizes(0, 1)


@pytest.mark.parametrize("seed", range(5))
def test_brute_force(seed):
    number = random.Random(seed).random
    line = lambda: Line(number() / 50, number())  # noqa: E731
    units = [
        Unit(line(), line(), number() / 10, 100 * number(), int(1000 * number())) for _ in range(4)
    ]
    factor = 1 + 5 * number()
    device, server = [each.scaled(factor) for each in units], units
    link = Link(1000 * number(), 1000 * number())
    workload = Workload(batch=12, samples=30, input_bytes=50.0, averages=2)

    def epoch(cut, micro):
        times = times_at(device, server, link, workload, cut)
        whole = sum(iteration_s(times, split_sizes(size, micro)) for size in (12, 12, 6))
        weights = 8 * sum(own.parameter_bytes for own in units[:cut])
        return whole + 2 * weights * (1 / link.up_bps + 1 / link.down_bps)

    pairs = [(0, 1), (4, 1), *itertools.product((1, 2, 3), range(1, 13))]
    found = candidates(device, server, link, workload)
    assert found[0].epoch_s == pytest.approx(min(epoch(*pair) for pair in pairs))
    assert {each.cut for each in found} == {*range(5)}


def test_a_profile_and_the_workload_of_a_device():
    units = build("VGG5")
    x, y = torch.randn(20, 3, 32, 32), torch.randint(10, (20,))
    found = measure(units, x, y, repeats=2)
    assert [own.output_bytes / 1024 for own in found] == [32, 16, 16, 0.5, 0]
    assert all(own.forward.at(20) > 0 and own.backward.at(20) > 0 for own in found)
    assert found[0].parameter_bytes == 4 * (960 + 64) + 8
    load = Workload.of(Settings(devices=1), Stream(x, y, Settings(), 0))
    assert (load.batch, load.samples, load.input_bytes) == (20, 20, 4 * 3 * 32 * 32)
