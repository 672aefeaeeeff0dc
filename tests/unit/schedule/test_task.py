"""Schedules hold what they promise, the validator finds what is broken, and free workers share."""

import itertools
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.engine.costs import balanced_cuts
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import block_by_block, gpipe, of_orders, shared_by_neighbours
from alkit.schedule.targets import target_propagation
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
from alkit.schedule.torch_orders import torch_order
from alkit.schedule.urgency import WorkLeft
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


def test_same_tasks_in_all_modes():
    def tasks(schedule):
        return {t for w in range(schedule.workers) for t in schedule.order(w, range(3))}

    assert tasks(al(4)) == tasks(al_m(4)) == tasks(al_fm(4)) == tasks(al_pipeline(4, [1]))


def test_orders_are_lazy():
    assert next(al_pipeline(3).order(1, count())) == Task("forward", 1, 0)


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


@pytest.mark.parametrize(
    ("task", "kind", "other", "message"),
    [
        (BACKWARD, "data", Task("update", 1, 1), "which is no data edge: give"),  # of its own stage
        (BACKWARD, "order", Task("forward", 0, 1), "which is no order edge: give"),  # of another's
        (BACKWARD, "weights", Task("update", 0, 0), "which is no weights edge: give"),
        # takes nothing that a forward of stage 1 makes
        (BACKWARD, "room", Task("forward", 2, 0), "which is no room edge: give"),
        (LAST, "weights", Task("update", 2, 1), "which is no weights edge: give"),  # of its batch
        (LAST, "data", Task("forward", 0, 1), "two data edges"),
        (LAST, "hope", Task("forward", 0, 1), "which is no hope edge: give data, order"),
    ],
)
def test_an_edge_is_what_it_is_called(task, kind, other, message):
    def edges(each, own):
        return [*own, Edge(kind, other)] if each == task else own

    with pytest.raises(ScheduleError, match=message):
        validate(_broken(al_pipeline(3), edges))


def test_takers_owners_and_queues():
    schedule = al_pipeline(4, cuts=[2], capacity=3)
    assert schedule.takers(Task("forward", 1, 5)) == (Task("forward", 2, 5),)
    assert schedule.takers(Task("update", 1, 5)) == ()
    assert [schedule.lane(Task("update", k, 0)) for k in range(4)] == [0, 0, 1, 1]
    queues = validate(schedule).queues
    assert queues == {("forward", k, "forward", k + 1): (1, 3, 1)[k] for k in range(3)}
    assert validate(block_by_block(2)).queues["backward", 1, "backward", 0] == 1


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
    (lambda: al(0), "layers is 0"),
    (lambda: al_pipeline(3, capacity=0), "capacity is 0"),
    (lambda: al_pipeline(3, [2, 1]), "rising layer numbers"),
    (lambda: al_pipeline(3, [3]), "between 1 and 2"),
    (lambda: al_fm(3, 5), "rising layer numbers"),
    (lambda: al_m(3, 1), "workers_for_backwards is 0"),
    (lambda: gpipe(2, 0), "micro is 0"),
    (lambda: shared_by_neighbours(gpipe(3, 4), 2), "2 stages for 3 workers"),
    (lambda: target_propagation(0), "blocks is 0"),
    (lambda: free_workers(al(3), 2), "al has 1 workers for 3 stages: free workers need"),
    (lambda: free_workers(al_pipeline(3, [1]), 2), "2 workers for 3 stages"),
    (lambda: free_workers(al_pipeline(2), 0), "workers is 0"),
    (lambda: balanced_cuts([1, 1, 1], 0), "give 1 to 3"),
    (lambda: balanced_cuts([1, 1, 1], 4), "give 1 to 3"),
    (lambda: simulate(al(1), lambda task: 1.0, 0), "at least 1"),
    (lambda: torch_order("interleaved_1f1b", 5, 2, 4), "stages that workers can share alike"),
    (lambda: torch_order("interleaved_1f1b", 4, 2, 0), "micro is 0"),
    (lambda: torch_order("interleaved_1f1b", 4, 2, 5), "interleaved_1f1b with 4 stages"),
    (lambda: of_orders("none", [[]]), "has no task"),
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


@pytest.mark.parametrize("workers", [2, 3])
def test_no_more_layers_hold_activations_than_there_are_workers(workers):
    timeline = simulate(free_workers(al_pipeline(7), workers), lambda task: 1.0 + task.stage, 20)
    events = [(i.start_s, 1) for i in timeline.intervals if i.kind == "forward"]
    events += [(i.end_s, -1) for i in timeline.intervals if i.kind == "backward"]
    assert max(itertools.accumulate(change for _, change in sorted(events))) == workers


def test_free_workers_keep_tasks_edges_and_proofs():
    bound, free = al_pipeline(4, capacity=3), free_workers(al_pipeline(4, capacity=3), 2)
    assert (free.workers, free.lanes, free.places) == (2, 4, bound.places)
    assert validate(free) == validate(bound)
    assert free_workers(al_pipeline(2), 9).workers == 2
    assert bound.lane(Task("update", 3, 7)) == free.lane(Task("update", 3, 7)) == 3
