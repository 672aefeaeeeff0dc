"""Pipelines of backprop and target propagation: valid, their makespans, and what stages hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.schedule.clock import simulate
from alkit.schedule.flushed import (
    block_by_block,
    gpipe,
    one_f_one_b,
    shared_by_neighbours,
    zero_bubble,
)
from alkit.schedule.locks import removed_locks
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import Task, al, al_pipeline
from alkit.schedule.validate import validate

MAKERS = st.sampled_from([gpipe, one_f_one_b, zero_bubble])
SECONDS = {"forward": 1.0, "backward": 2.0, "backward_input": 1.0, "backward_weight": 1.0,
           "update": 0.0}  # fmt: skip


def _span(schedule, batches=1):
    return simulate(schedule, lambda task: SECONDS[task.kind], batches).span_s


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MAKERS, st.integers(1, 5), st.integers(1, 8))
def test_valid_without_staleness_and_of_the_papers_makespan(make, stages, micro):
    """(M + K - 1) (f + b), for one batch and, with a flush after each, for several."""
    schedule = make(stages, micro)
    assert set(validate(schedule, 3).staleness) == {0}
    assert Task("update", 0, 0) in schedule.waits(Task("forward", 0, 1)), "the flush"
    if make is not zero_bubble:
        expected = (micro + stages - 1) * 3.0
        assert _span(schedule) == pytest.approx(expected)
        assert _span(schedule, 3) <= 3 * expected + 1e-9


@settings(max_examples=20, deadline=None, derandomize=True)
@given(MAKERS, st.integers(1, 3), st.integers(0, 4))
def test_neighbours_share_as_one_did(make, workers, more):
    """Twice the stages on as many workers, and half the seconds each: as long as before."""
    stages = workers + more
    shared = shared_by_neighbours(make(workers, 4), stages)
    assert set(validate(shared, 3).staleness) == {0}
    owners = [shared.lane(Task("update", stage, 0)) for stage in range(stages)]
    assert owners == sorted(owners)
    assert {*owners} == {*range(workers)}
    twice = shared_by_neighbours(make(workers, 4), 2 * workers)
    halved = simulate(twice, lambda task: SECONDS[task.kind] / 2, 1).span_s
    assert halved == pytest.approx(_span(make(workers, 4)))


def test_locks_that_schedules_remove():
    made = (block_by_block(3), al(3), al_pipeline(3), gpipe(3, 4), zero_bubble(3, 4))
    locks = [(), ("backward", "weights"), ("backward", "update", "weights"), (), ()]
    assert [removed_locks(schedule) for schedule in made] == locks


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (3, 5), (4, 8), (6, 12)])
def test_zero_bubble_idles_a_third(stages, micro):
    """The bubble of ZB-H1 is (K - 1) (f + b_input - b_weight); 1F1B's (K - 1) (f + b)."""
    work = 3.0 * micro
    assert _span(zero_bubble(stages, micro)) - work == pytest.approx(stages - 1)
    assert _span(one_f_one_b(stages, micro)) - work == pytest.approx(3 * (stages - 1))


@pytest.mark.parametrize(("make", "held"), [(gpipe, [8, 8, 8, 8]), (one_f_one_b, [4, 3, 2, 1]),
                                            (zero_bubble, [4, 4, 4, 4])])  # fmt: skip
def test_micro_batches_that_a_stage_holds(make, held):
    last = "backward_weight" if make is zero_bubble else "backward"
    for stage in range(4):
        now = most = 0
        for task in make(4, 8).order(stage, [0]):
            now += (task.kind == "forward") - (task.kind == last)
            most = max(most, now)
        assert most == held[stage]


def test_a_row_of_each_drawing():
    def row(schedule, worker):
        names = {"forward": "F", "backward": "B", "backward_input": "i", "backward_weight": "w"}
        tasks = [t for t in schedule.order(worker, [0]) if t.kind != "update"]
        return " ".join(f"{names[t.kind]}{t.micro}" for t in tasks)

    assert row(gpipe(3, 4), 0) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert row(one_f_one_b(3, 4), 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert row(zero_bubble(3, 4), 1) == "F0 F1 i0 F2 i1 w0 F3 i2 w1 i3 w2 w3"


def test_loops_of_all_blocks_run_at_once_and_targets_descend():
    for blocks in (1, 2, 5):
        assert validate(target_propagation(blocks)).staleness == (0,) * blocks
    seconds = {"forward": 1.0, "learn": 20.0, "target": 2.0, "backward": 3.0, "update": 0.5}
    found = simulate(target_propagation(5), lambda task: seconds[task.kind], 1)
    # all forwards, the loops at once, then targets one after the other
    assert found.span_s == pytest.approx(5 * 1 + 20 + 5 * 2 + 3 + 0.5)
    loops = [i for i in found.intervals if i.kind == "learn"]
    assert len(loops) == 4  # the lowest block has no feedback to learn
    assert max(i.start_s for i in loops) < min(i.end_s for i in loops)
