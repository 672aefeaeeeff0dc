"""Schedules beside torch's own: its orders, its validator, its simulator, its files."""

from itertools import product
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as theirs

from alkit.schedule.clock import simulate
from alkit.schedule.flushed import gpipe, one_f_one_b, zero_bubble
from alkit.schedule.task import ScheduleError
from alkit.schedule.torch_orders import SEVERAL, read_csv, to_csv, torch_order
from alkit.schedule.validate import validate

SIZES = [*product(range(2, 5), range(2, 9)), (6, 16), (2, 32), (8, 2), (8, 12)]
LOOPS = [(2, 2, 2), (2, 2, 8), (2, 3, 4), (3, 2, 6), (3, 3, 3), (4, 2, 8)]


def actions(text):
    """Return what torch reads of a file, by rank."""
    return {
        rank: [theirs._Action.from_str(cell) for cell in row.split(",")]
        for rank, row in enumerate(text.splitlines())
    }


def order_of(name, ranks, chunks, micro):
    """Return torch's own order of a schedule with several stages a rank, as text."""
    kind = theirs.get_schedule_class(name)
    own = SimpleNamespace(
        _stages=[None] * chunks,
        n_local_stages=chunks,
        microbatches_per_round=micro // max(1, micro // ranks),
        pp_group_size=ranks,
        _num_stages=ranks * chunks,
        num_stages=ranks * chunks,
        _n_microbatches=micro,
    )
    rows = [kind._calculate_single_rank_operations(own, rank) for rank in range(ranks)]
    return "\n".join(",".join("" if a is None else str(a) for a in row) for row in rows) + "\n"


@pytest.mark.parametrize("made", [gpipe, one_f_one_b, zero_bubble])
def test_torch_accepts_what_is_written_and_it_is_read_again(made, tmp_path):
    for stages, micro in SIZES:
        schedule = made(stages, micro)
        text = to_csv(schedule)
        (tmp_path / f"{schedule.name}.csv").write_text(text)
        there = actions(text)
        owners = theirs._validate_schedule(there, stages, stages, micro)
        assert owners == {stage: stage for stage in range(stages)}
        sends = theirs._add_send_recv(there, lambda stage: stage, stages)
        theirs._simulate_comms_compute(sends, lambda stage: stage, stages)
        again = read_csv(tmp_path / f"{schedule.name}.csv")
        assert to_csv(again) == text
        with_sends = "\n".join(",".join(map(str, row)) for row in sends.values())
        (tmp_path / "sends.csv").write_text(with_sends)
        assert to_csv(read_csv(tmp_path / "sends.csv")) == text


@pytest.mark.parametrize("name", [*SEVERAL, "InterleavedZeroBubble"])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_torch_s_orders_are_proved(name, workers):
    """Every order that torch makes of these sizes."""
    proved = 0
    for chunks, micro in product((1, 2, 3), range(2, 17)):
        try:
            made = torch_order(name, workers * chunks, workers, micro)
        except ScheduleError:  # torch makes none
            continue
        proved += 1
        assert len(made.places) - made.stages >= 2 * workers * chunks * micro
        if proved % 3 == 1:  # of the others the order alone: it takes its time
            assert validate(made, 2).staleness == (0,) * made.stages
    assert proved > 2


@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"])
def test_orders_are_what_torch_s_ranks_calculate(name, tmp_path):
    for ranks, chunks, micro in LOOPS:
        if name in ("zbv", "dualpipev") and (chunks != 2 or micro < 2 * ranks):
            continue
        text = to_csv(torch_order(name, ranks * chunks, ranks, micro))
        (tmp_path / "own.csv").write_text(text)
        (tmp_path / "theirs.csv").write_text(order_of(SEVERAL[name], ranks, chunks, micro))
        assert to_csv(read_csv(tmp_path / "theirs.csv")) == text, (ranks, chunks, micro)


def test_more_stages_a_worker_leave_less_idle():
    def idle(schedule, parts):
        costs = {"forward": 1.0 / parts, "backward": 2.0 / parts, "update": 0.0}
        return simulate(schedule, lambda task: costs[task.kind], 1).bubble

    alone, two = one_f_one_b(4, 8), torch_order("interleaved_1f1b", 8, 4, 8)
    assert idle(two, 2) < 0.6 * idle(alone, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0B0\n1F0,1X0\n", "row 1, cell 1: '1X0' is no action"),
        ("0F0,0B0\n1F0\n", "stage 1 needs a forward and a backward of micro-batch 0"),
        ("0F0,0I0\n", "stage 0 needs a forward and a backward of micro-batch 0"),
        ("0F0,0B0,0B0\n", "runs twice: backward of stage 0, batch 0"),
        ("0F0,0B0\n0F1,0B1\n", "runs twice: update of stage 0, batch 0"),
        ("0F0,0B0\n1B0,1F0\n", "deadlocks: .*backward of stage 1"),
        ("0F0,0B0\n1F0,1B0,1F1,1B1\n", "stage 0 needs a forward and a backward of micro-batch 1"),
        ("", "has no task"),
        ("0F0,0B0,0W0\n", "older files of torch have B for I"),
        ("999999F0,999999B0\n", "stage 0 needs a forward"),
        ("1000000000F0\n", "'1000000000F0' is no action"),
        ("0F0,0F1".encode("utf-16"), "row 0, cell 0"),
    ],
)
def test_a_file_that_can_t_be_run_is_refused(text, words, tmp_path):
    (tmp_path / "own.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScheduleError, match=words):
        read_csv(tmp_path / "own.csv")


def test_a_file_out_of_a_spreadsheet_is_read(tmp_path):
    (tmp_path / "own.csv").write_text("\ufeff0F0, 0F1 ,0B0,0B1\n\n,,\n1F0,1B0,1F1,1B1\n")
    assert to_csv(read_csv(tmp_path / "own.csv")) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_own_orders_are_torch_s():
    for stages, micro in ((2, 4), (3, 5), (6, 16)):
        stub = SimpleNamespace(num_stages=stages)
        for made, kind in ((gpipe, theirs.ScheduleGPipe), (one_f_one_b, theirs.Schedule1F1B)):
            order = kind(stub, micro).pipeline_order
            rows = to_csv(made(stages, micro)).splitlines()
            # torch's text of 1F1B is off by one on its last rank
            for worker in range(stages - (made is one_f_one_b)):
                own = [str(each) for each in order[worker] if each and each.is_compute_op]
                assert rows[worker] == ",".join(own)
