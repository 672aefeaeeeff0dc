"""Free workers: which lane has most work left, and what a schedule must be to be shared."""

import itertools

import pytest

from alkit.schedule.clock import simulate
from alkit.schedule.task import Task, al_pipeline, free_workers
from alkit.schedule.urgency import WorkLeft
from alkit.schedule.validate import validate


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
    held = list(itertools.accumulate(change for _, change in sorted(events)))
    assert max(held) == workers


def test_free_workers_keep_tasks_edges_and_proofs():
    bound, free = al_pipeline(4, capacity=3), free_workers(al_pipeline(4, capacity=3), 2)
    assert (free.workers, free.lanes, free.places) == (2, 4, bound.places)
    assert validate(free) == validate(bound)
    assert free_workers(al_pipeline(2), 9).workers == 2
    assert bound.owner(Task("update", 3, 7)) == free.lane(Task("update", 3, 7)) == 3
