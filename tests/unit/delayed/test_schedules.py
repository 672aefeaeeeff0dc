"""The schedules against the published tables, the closed forms and torch's own 1F1B."""

from pathlib import Path

import pytest

from alkit.delayed import METHODS, schedule_for
from alkit.delayed.schedules import SHARED
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.validate import validate
from studies.delayed.schedule_widget import durations
from studies.delayed.tables import by_iteration, cells


def worked():
    """Return the tables of six batches that were worked out by hand: method, modules, rows."""
    text = (Path(__file__).parent / "tables.txt").read_text()
    for part in text.split("# ")[1:]:
        head, *lines = part.strip().split("\n")
        method, modules = head.split()
        yield method, int(modules), [line.split(" | ") for line in lines]


def by_slot(method, modules):
    """Return a row a slot of time, forward and backward taking one slot each."""
    words, rows = cells(method, modules, 6), {}
    seconds = {"forward": 1.0, "backward": 1.0, "update": 0.0}
    for i in simulate(schedule_for(method, modules), lambda t: seconds[t.kind], 6).intervals:
        if i.kind != "update":
            row = rows.setdefault(round(i.start_s), ["."] * modules)
            row[i.stage] = words[Task(i.kind, i.stage, i.batch, i.micro)]
    return [[str(at), *rows[at]] for at in sorted(rows)]


@pytest.mark.parametrize(("method", "modules", "rows"), [*worked()])
def test_worked_tables_cell_by_cell(method, modules, rows):
    if method in ("ddg", "fr"):
        shown = by_iteration(method, modules, 6).reset_index().astype(str).to_numpy().tolist()
    else:
        shown = by_slot(method, modules)
    assert shown[: len(rows)] == rows
    assert method == "seq" or len(shown) == len(rows)


def test_the_published_example():
    """Four devices, batch 5, counted from 1: device k uses the weights updated from batch k."""
    words = cells("ddg", 4, 6)
    assert [words[Task("forward", k, 4)] for k in range(4)] == [f"F4@{k + 1}" for k in range(4)]
    assert cells("fr", 4, 6)[Task("backward", 0, 4)] == "R4@4→5"


@pytest.mark.parametrize("modules", [1, 2, 3, 5])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_schedules_are_valid(method, modules):
    micro, workers = modules + 1 if METHODS[method].accumulates else 1, None
    if method in SHARED:
        modules, micro, workers = 2 * modules, 2 * modules, modules
    report = validate(schedule_for(method, modules, micro, workers=workers), 8)
    late = {"seq": 0, "flushed": 0}.get(METHODS[method].order, 1 if method == "2bw" else None)
    if late is None:
        assert report.staleness == tuple(modules - 1 - k for k in range(modules))
    else:
        assert max(report.staleness) <= late


def test_the_published_example_of_makespans():
    """f = 1, b = 2, twenty batches."""
    worked = {
        "seq": [120, 180, 240, 360, 480],
        "ddg_barrier": [82, 104, 126, 170, 214],
        "ddg": [82, 85, 88, 94, 100],
        "fr_barrier": [102, 125, 148, 194, 240],
        "fr": [83, 105, 109, 117, 125],
        "fr_1f1b": [82, 86, 90, 98, 106],
        "pipedream": [63, 66, 69, 75, 81],
    }
    for name, spans in worked.items():
        for modules, span_s in zip((2, 3, 4, 6, 8), spans, strict=True):
            seconds = durations(name, modules, 1.0, 2.0)
            assert simulate(schedule_for(name, modules), seconds, 20).span_s == span_s


def test_our_order_is_that_of_torch_s_1f1b():
    """All ranks but the last, whose printed order is off by one in torch."""
    from torch.distributed.pipelining import _schedule_visualizer as drawn

    theirs = drawn.get_schedule_ops("1F1B", 4, 8)
    ours = schedule_for("pipedream", 4)
    for rank in range(3):
        shown = [str(op) for op in theirs[rank] if op is not None and "REDUCE" not in str(op)]
        assert shown == [
            f"{task.stage}{'F' if task.kind == 'forward' else 'B'}{task.batch}"
            for task in ours.order(rank, range(8))
            if task.kind != "update"
        ]
