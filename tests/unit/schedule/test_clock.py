"""The clock against the closed forms of AL's timing model, and the figures of a timeline."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.schedule.clock import simulate
from alkit.schedule.task import al, al_fm, al_m, al_pipeline, free_workers
from alkit.schedule.timeline import Interval, Timeline

KINDS = "forward", "backward", "update"
SECONDS = st.lists(st.tuples(*[st.floats(0.1, 2.0)] * 3), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(SECONDS)
def test_closed_forms_of_one_batch_and_the_recurrence_of_the_pipeline(seconds):
    layers, batches = len(seconds), 5
    durations = {(k, at): s for at, own in enumerate(seconds) for k, s in zip(KINDS, own)}  # noqa: B905
    forward, rest = [own[0] for own in seconds], [own[1] + own[2] for own in seconds]
    expected = {
        al: sum(forward) + sum(rest),
        al_m: sum(forward) + max(rest),
        al_fm: max(sum(forward[: i + 1]) + rest[i] for i in range(layers)),
    }
    for mode, span_s in expected.items():
        timeline = simulate(mode(layers), durations, batches)
        assert timeline.span_s == pytest.approx(batches * span_s)
        assert timeline.step_s == pytest.approx(span_s)
    # unbounded hand-over: a layer starts when its input is there and its last update is done
    free = [0.0] * layers
    for _ in range(batches):
        arrived = 0.0
        for i in range(layers):
            arrived = max(arrived, free[i]) + forward[i]
            free[i] = arrived + rest[i]
    timeline = simulate(al_pipeline(layers, capacity=batches), durations, batches)
    assert timeline.span_s == pytest.approx(max(free))


def test_cores_bound_what_runs_at_once():
    timeline = simulate(al_fm(4), lambda task: 1.0, 5, cores=2)
    for at in range(int(timeline.span_s)):
        assert sum(i.start_s <= at + 0.5 < i.end_s for i in timeline.intervals) <= 2
    one = simulate(al_fm(4), lambda task: 1.0, 5, cores=1)
    assert one.span_s == pytest.approx(60.0)
    many = simulate(free_workers(al_pipeline(4), 2), lambda task: (5, 2, 2, 1)[task.stage], 64)
    assert many.span_s < 1.01 * 64 * 3 * 10 / 2  # the most urgent goes first


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("capacity", [1, 2, 6])
def test_what_queues_hold_does_not_count_as_speed(capacity, seconds):
    """Batches that wait before the slow layer at the beginning end without the other one's work."""
    pipeline = al_pipeline(2, capacity=capacity)
    assert simulate(pipeline, lambda task: seconds[task.stage], 24).steady_s == pytest.approx(6.0)
    free = free_workers(al_pipeline(4, capacity=capacity), 2)
    own = (1.0, 1.0, *seconds)
    assert simulate(free, lambda task: own[task.stage], 24).steady_s > 0.99 * 7.5


def test_figures_of_a_timeline():
    rows = [("a", 1.0, 2.0, 0), ("b", 2.0, 4.0, 0), ("a", 2.0, 3.0, 1), ("b", 4.0, 5.0, 1)]
    intervals = [Interval(r, "forward", 0, batch, 0, s, e) for r, s, e, batch in rows]
    timeline = Timeline.of(intervals, ("a", "b", "c"))
    assert (timeline.span_s, timeline.busy_s("b"), timeline.idle_share("a")) == (4.0, 3.0, 0.5)
    assert timeline.bubble == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert timeline.batch_ends_s == (3.0, 4.0)
    assert (timeline.step_s, timeline.steady_s) == (1.0, 2.0)
    assert timeline.task_s() == {("forward", 0): 1.0}
    empty = Timeline.of([], ("a", "b"))
    assert empty.span_s == empty.bubble == empty.step_s == empty.steady_s == 0
    joined = Timeline.joined([timeline] * 3)
    assert joined.span_s == 12.0
    assert {i.batch for i in joined.intervals} == {*range(6)}
    assert len(timeline.between(1, 1).intervals) == 2
