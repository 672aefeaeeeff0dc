"""Schedules hold what they promise, the validator finds what is broken, and free workers share."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.schedule.clock import WorkLeft
from alkit.schedule.flushed import gpipe
from alkit.schedule.task import (
    Edge,
    ScheduleError,
    Task,
    al,
    al_fm,
    al_m,
    al_pipeline,
    free_workers,
)
from alkit.schedule.validate import validate


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.sets(st.integers(1, 5)), st.integers(2, 7))
def test_all_schedules_are_valid_and_without_staleness(layers, cuts, workers):
    made = [mode(layers) for mode in (al, al_m, al_fm, al_pipeline)]
    made += [mode(layers, min(workers, layers + 1)) for mode in (al_m, al_fm)]
    made += [al_pipeline(layers, sorted(cut for cut in cuts if cut < layers))]
    for schedule in made:
        report = validate(schedule)
        assert len(schedule.places) == 3 * layers
        assert set(report.staleness) == {0}


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_capacity_bounds_what_waits_between_workers(capacity):
    report = validate(al_pipeline(5, [2, 4], capacity), batches=8)
    assert tuple(report.queues.values()) == (1, capacity, 1, capacity)


def _broken(good, edges):
    """The schedule with other edges; `edges` gets a task and its own ones."""
    return replace(good, edges=lambda task: tuple(edges(task, good.edges(task))))


def test_a_missing_weight_edge_is_a_race():
    def edges(task, own):
        return (e for e in own if (task.kind, e.task.kind) != ("forward", "update"))

    with pytest.raises(ScheduleError, match="could run at the same time"):
        validate(_broken(al_fm(3), edges))


def test_staleness_beyond_the_promise():
    def order(worker, batches):
        waiting = None
        for batch in batches:  # the update comes one batch late
            yield Task("forward", 0, batch)
            if waiting is not None:
                yield from (Task("backward", 0, waiting), Task("update", 0, waiting))
            waiting = batch
        yield from (Task("backward", 0, waiting), Task("update", 0, waiting))

    late = replace(al(1), name="late", order=order, edges=lambda task: ())
    with pytest.raises(ScheduleError, match="late promises staleness 0 and has .1,."):
        validate(late)
    assert validate(replace(late, staleness=1)).staleness == (1,)


BACKWARD, LAST = Task("backward", 1, 1), Task("forward", 2, 1)


CALLED = [
    (BACKWARD, "data", Task("update", 1, 1), "which is no data edge: give"),  # of its own stage
    (BACKWARD, "order", Task("forward", 0, 1), "which is no order edge: give"),  # of another's
    (BACKWARD, "weights", Task("update", 0, 0), "which is no weights edge: give"),
    # takes nothing that a forward of stage 1 makes
    (BACKWARD, "room", Task("forward", 2, 0), "which is no room edge: give"),
    (LAST, "weights", Task("update", 2, 1), "which is no weights edge: give"),  # of its batch
    (LAST, "data", Task("forward", 0, 1), "two data edges"),
]


@pytest.mark.parametrize(("task", "kind", "other", "message"), CALLED)
def test_an_edge_is_what_it_is_called(task, kind, other, message):
    def edges(each, own):
        return [*own, Edge(kind, other)] if each == task else own

    with pytest.raises(ScheduleError, match=message):
        validate(_broken(al_pipeline(3), edges))


def _waits(schedule, other):
    return lambda: validate(_broken(schedule, lambda task, _: [Edge("barrier", other(task))]))


def _ahead(worker, batches):
    """It would wait for the loader's end, which nobody knows while a run goes on."""
    for batch in sorted(batches):
        yield from (Task(kind, 0, batch) for kind in ("forward", "backward", "update"))


REFUSED = [
    (_waits(al_pipeline(2), lambda t: t._replace(stage=1 - t.stage)),
     "deadlocks: update of stage 0, batch . waits for update of stage 1, batch . waits for"),
    (_waits(al(2), lambda t: Task("replay", 0, t.batch)), "which nobody runs"),
    (lambda: validate(replace(al(1), workers=2, order=lambda _, each: al(1).order(0, each))),
     "runs twice"),
    (lambda: validate(replace(al(1), order=_ahead)),
     "order of lane 0 looks ahead: it takes .* numbers"),
    (lambda: al_pipeline(3, capacity=0), "capacity is 0"),
    (lambda: al_pipeline(3, [2, 1]), "rising layer numbers"),
    (lambda: gpipe(2, 0), "micro is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_schedules(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_work_left_counts_known_batches_and_measured_seconds():
    work = WorkLeft(free_workers(al_pipeline(2), 2))
    first, second = Task("forward", 0, 0), Task("forward", 1, 0)
    assert work.urgency(0, first, 2) == work.urgency(1, second, 2) == (False, 6.0)
    for kind, seconds in (("forward", 1.0), ("backward", 4.0), ("update", 0.5)):
        work.note(0, Task(kind, 0, 0), seconds)
    assert work.urgency(0, Task("forward", 0, 3), 5) == (False, 11.0)
    assert work.urgency(0, Task("backward", 0, 3), 5) == (True, 11.0)
    assert work.urgency(1, Task("forward", 1, 4), 5) == (False, 3.0)
    work.note(0, Task("update", 0, 1), 1.5)  # smoothed
    assert work.urgency(0, Task("forward", 0, 4), 5) == (False, pytest.approx(5.8))
