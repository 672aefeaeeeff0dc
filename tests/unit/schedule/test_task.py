"""Schedules hold what they promise, and the validator finds what is broken."""

from dataclasses import replace

import pytest

from alkit.schedule.task import (
    Edge,
    ScheduleError,
    Task,
    al,
    al_fm,
    al_m,
    al_pipeline,
    block_by_block,
    bp,
)
from alkit.schedule.validate import validate

ALL = [
    bp(),
    *(al(n) for n in (1, 3)),
    *(mode(n) for mode in (al_m, al_fm, al_pipeline) for n in (1, 2, 6)),
    *(mode(5, workers) for mode in (al_m, al_fm) for workers in (2, 3, 6)),
    *(al_pipeline(6, cuts) for cuts in ([], [1], [2, 5], [1, 2, 3, 4, 5])),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: f"{s.name}-{s.stages}-{s.workers}")
def test_all_schedules_are_valid_and_without_staleness(schedule):
    report = validate(schedule)
    assert report.tasks == 6 * 3 * schedule.stages == 6 * schedule.tasks_per_batch
    assert set(report.staleness) == {0}


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_capacity_bounds_what_waits_between_workers(capacity):
    report = validate(al_pipeline(5, [2, 4], capacity), batches=8)
    assert report.capacity == (1, capacity, 1, capacity)


def test_same_tasks_in_all_modes():
    def tasks(schedule):
        return {t for w in range(schedule.workers) for t in schedule.order(w, range(3))}

    assert tasks(al(4)) == tasks(al_m(4)) == tasks(al_fm(4)) == tasks(al_pipeline(4, [1]))


def test_orders_are_lazy():
    def endless():
        batch = 0
        while True:
            yield batch
            batch += 1

    order = al_pipeline(3).order(1, endless())
    assert next(order) == Task("forward", 1, 0)


def _without(schedule, kind, dropped):
    """The schedule with one edge left out."""

    def edges(task):
        kept = schedule.edges(task)
        return tuple(edge for edge in kept if (task.kind, edge.task.kind) != (kind, dropped))

    return replace(schedule, edges=edges)


def test_a_missing_weight_edge_is_a_race():
    broken = _without(al_fm(3), "forward", "update")
    with pytest.raises(ScheduleError, match="could run at the same time"):
        validate(broken)


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


def _barrier(task):
    return Edge("barrier", task)


MISNAMED = {
    "data": Edge("data", Task("update", 1, 1)),  # of its own stage
    "order": Edge("order", Task("forward", 0, 1)),  # of another stage
    "weights": Edge("weights", Task("update", 0, 0)),
    "room": Edge("room", Task("forward", 2, 0)),  # takes nothing that a forward of stage 1 makes
}


@pytest.mark.parametrize("kind", MISNAMED)
def test_an_edge_is_what_it_is_called(kind):
    good = al_pipeline(3)

    def edges(task):
        own = (MISNAMED[kind],) if task == Task("backward", 1, 1) else ()
        return *good.edges(task), *own

    with pytest.raises(ScheduleError, match=f"which is no {kind} edge: it"):
        validate(replace(good, edges=edges))


def test_one_payload_and_known_kinds():
    good, first = al_pipeline(3), Task("forward", 0, 1)

    def with_edge(added):
        def edges(task):
            return *good.edges(task), *((added,) if task == Task("forward", 2, 1) else ())

        return replace(good, edges=edges)

    with pytest.raises(ScheduleError, match="two data edges"):
        validate(with_edge(Edge("data", first)))
    with pytest.raises(ScheduleError, match="unknown edge 'hope': give data, order"):
        validate(with_edge(Edge("hope", first)))


def test_takers_owners_and_queues():
    schedule = al_pipeline(4, cuts=[2], capacity=3)
    assert schedule.takers(Task("forward", 1, 5)) == (Task("forward", 2, 5),)
    assert schedule.takers(Task("update", 1, 5)) == ()
    assert [schedule.owner(Task("update", k, 0)) for k in range(4)] == [0, 0, 1, 1]
    queues = validate(schedule).queues
    assert queues == {("forward", k, "forward", k + 1): (1, 3, 1)[k] for k in range(3)}
    assert validate(block_by_block(2)).queues["backward", 1, "backward", 0] == 1


def test_deadlock_unknown_wait_and_double_task():
    circle = replace(al_pipeline(2), edges=lambda t: (_barrier(t._replace(stage=1 - t.stage)),))
    with pytest.raises(ScheduleError, match="deadlocks: forward of stage 0, batch 0 waits for"):
        validate(circle)
    unknown = replace(al(2), edges=lambda t: (_barrier(Task("replay", 0, t.batch)),))
    with pytest.raises(ScheduleError, match="which nobody runs"):
        validate(unknown)
    twice = replace(al(1), workers=2)
    with pytest.raises(ScheduleError, match="runs twice"):
        validate(twice)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: al(0), "layers is 0"),
        (lambda: al_pipeline(3, capacity=0), "capacity is 0"),
        (lambda: al_pipeline(3, [2, 1]), "rising layer numbers"),
        (lambda: al_pipeline(3, [3]), "between 1 and 2"),
        (lambda: al_fm(3, 5), "so 2 to 4"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
