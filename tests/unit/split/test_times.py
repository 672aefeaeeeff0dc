"""The recurrence agrees with hand values, with the clock on the schedule, and with its bound."""

import random

import pytest

from alkit.schedule.clock import simulate
from alkit.schedule.task import ScheduleError
from alkit.schedule.validate import validate
from alkit.split.schedule import DEVICE, SERVER, split, split_sizes
from alkit.split.times import Line, Times, fitted, iteration_s, lower_bound_s
from studies.split.lanes_widget import seconds_of

PUBLISHED = Times(*(Line(each=seconds / 8) for seconds in (4, 4, 4, 4, 4)))


def test_figures_proportions():
    assert iteration_s(PUBLISHED, [8]) == 20
    assert iteration_s(PUBLISHED, [2] * 4) == 8
    assert lower_bound_s(PUBLISHED, 8) == 8


@pytest.mark.parametrize("seed", range(20))
def test_recurrence_is_the_clocks_end(seed):
    draw = random.Random(seed)
    lines = [Line(draw.choice((0, draw.random())), draw.random()) for _ in range(5)]
    times = Times(*lines, update=draw.random())
    sizes = split_sizes(draw.randint(1, 40), draw.randint(1, 9))
    seconds = seconds_of(times, sizes)
    timeline = simulate(split(len(sizes)), seconds.__getitem__, 1)
    end = max(i.end_s for i in timeline.intervals if (i.kind, i.stage) == ("update", 0))
    assert end == pytest.approx(iteration_s(times, sizes), abs=1e-12)
    assert iteration_s(times, sizes) >= lower_bound_s(times, sum(sizes)) - 1e-9 or times.up.fixed


def test_many_micro_batches_approach_the_bound():
    times = Times(Line(each=3), Line(each=2), Line(each=1), Line(each=2), Line(each=4))
    bound = lower_bound_s(times, 1000)
    ends = [iteration_s(times, split_sizes(1000, micro)) for micro in (1, 10, 100, 1000)]
    assert ends == sorted(ends, reverse=True)
    assert 1 <= ends[-1] / bound < 1.01


@pytest.mark.parametrize("micro", [1, 5])
@pytest.mark.parametrize("returns", [True, False])
def test_schedule_is_valid_and_the_server_runs_a_micro_batch_backward_at_once(micro, returns):
    validate(split(micro, returns=returns), batches=4)
    assert "".join(task.kind[0] for task in split(3).one_batch(SERVER)) == "fbfbfbu"
    assert "".join(task.kind[0] for task in split(3).one_batch(DEVICE)) == "fffbbbu"


@pytest.mark.parametrize(
    ("samples", "micro", "least", "sizes"),
    [
        (100, 3, 1, [34, 33, 33]),
        (100, 7, 1, [15, 15, 14, 14, 14, 14, 14]),
        (3, 8, 1, [1, 1, 1]),
        (5, 8, 2, [3, 2]),
        (1, 4, 2, [1]),
    ],
)
def test_no_sample_is_lost(samples, micro, least, sizes):
    assert split_sizes(samples, micro, least) == sizes
    assert sum(sizes) == samples


def test_fit():
    line = fitted([10, 20, 40], [1.5, 2.0, 3.0])
    assert line == pytest.approx((1.0, 0.05))
    assert fitted([10, 20], [1, 2.5]).fixed == 0
    assert fitted([10], [5.0]) == pytest.approx((0.0, 0.5))
    for bad in (lambda: split(0), lambda: split_sizes(0, 1)):
        with pytest.raises(ScheduleError):
            bad()
