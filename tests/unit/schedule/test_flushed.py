"""Pipelines with a flush: valid, their makespans, what stages hold, and torch's files of them."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as theirs

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
from alkit.schedule.task import ScheduleError, Task, al, al_pipeline
from alkit.schedule.torch_orders import read_csv, to_csv
from alkit.schedule.validate import validate

MAKERS = st.sampled_from([gpipe, one_f_one_b, zero_bubble])
SECONDS = {"forward": 1.0, "backward": 2.0, "backward_input": 1.0, "backward_weight": 1.0}
SECONDS["update"] = 0.0


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
    stages = workers + more
    shared = shared_by_neighbours(make(workers, 4), stages)
    assert set(validate(shared, 3).staleness) == {0}
    owners = [shared.lane(Task("update", stage, 0)) for stage in range(stages)]
    assert owners == sorted(owners)
    assert {*owners} == {*range(workers)}


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


HELD = [(gpipe, [8, 8, 8, 8]), (one_f_one_b, [4, 3, 2, 1]), (zero_bubble, [4, 4, 4, 4])]


@pytest.mark.parametrize(("make", "held"), HELD)
def test_micro_batches_that_a_stage_holds(make, held):
    last = "backward_weight" if make is zero_bubble else "backward"
    for stage in range(4):
        now = most = 0
        for task in make(4, 8).order(stage, [0]):
            now += (task.kind == "forward") - (task.kind == last)
            most = max(most, now)
        assert most == held[stage]


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


SIZES = [*product(range(2, 5), range(2, 9)), (6, 16), (2, 32), (8, 2), (8, 12)]


@pytest.mark.parametrize("made", [gpipe, one_f_one_b, zero_bubble])
def test_torch_accepts_what_is_written_and_it_is_read_again(made, tmp_path):
    for stages, micro in SIZES:
        text = to_csv(made(stages, micro))
        rows = enumerate(text.splitlines())
        there = {at: [*map(theirs._Action.from_str, row.split(","))] for at, row in rows}
        owners = theirs._validate_schedule(there, stages, stages, micro)
        assert owners == {stage: stage for stage in range(stages)}
        sends = theirs._add_send_recv(there, lambda stage: stage, stages)
        theirs._simulate_comms_compute(sends, lambda stage: stage, stages)
        with_sends = "\n".join(",".join(map(str, row)) for row in sends.values())
        for written in (text, with_sends):
            (tmp_path / "own.csv").write_text(written)
            assert to_csv(read_csv(tmp_path / "own.csv")) == text


REFUSED = [
    ("0F0,0B0\n1F0,1X0\n", "row 1, cell 1: '1X0' is no action"),
    ("0F0,0B0\n1F0\n", "stage 1 needs a forward and a backward of micro-batch 0"),
    ("0F0,0B0,0B0\n", "runs twice: backward of stage 0, batch 0"),
    ("0F0,0B0\n1B0,1F0\n", "deadlocks: .*backward of stage 1"),
    ("0F0,0B0,0W0\n", "older files of torch have B for I"),
    ("", "has no task"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_a_file_that_can_t_be_run_is_refused(text, words, tmp_path):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(ScheduleError, match=words):
        read_csv(tmp_path / "own.csv")
