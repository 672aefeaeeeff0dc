"""torch's own orders of flushed pipelines, by name or from a file.

    0F0,0F1,,,0B0,0B1          a row a worker, a cell an action: stage, letter, micro-batch
    ,1F0,1B0,1F1,1B1,          waits follow from data here, so empty cells are passed over

F forward, B backward, I and W its halves for the input and the weights. `(0F3;1B0)OVERLAP_F_B` is
one after the other here. What torch adds for links and memory (SEND_F, RECV_B, UNSHARD,
REDUCE_GRAD, ...) is passed over: links follow from the edges, an update ends a batch.
"""

import csv
import io
import re
from pathlib import Path
from types import SimpleNamespace

from alkit.schedule.flushed import KINDS, of_orders
from alkit.schedule.task import Place, Schedule, ScheduleError, Task
from alkit.schedule.validate import validate

SEVERAL = {  # whose workers have several stages each, as torch calls them
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
LETTERS = dict(zip("FBIW", KINDS, strict=True))
WORDS = {kind: letter for letter, kind in LETTERS.items()}
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
BETWEEN = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")


def torch_order(name: str, stages: int, workers: int, micro: int) -> Schedule:
    """Return a schedule whose order torch computes, as its runtime does.

    Args:
        name: of SEVERAL, or torch's own name of another schedule.
    Raises:
        ScheduleError: sizes that don't fit; says what torch says.
    """
    # here and not above: it brings torch's compiler with it, which takes seconds
    from torch.distributed.pipelining.schedules import get_schedule_class

    if min(stages, workers, micro) < 1 or stages % workers:
        raise ScheduleError(
            f"{stages} stages, {workers} workers and {micro} micro-batches: give 1 or more of each,"
            " and stages that workers can share alike"
        )
    own = {"num_stages": stages, "group_size": workers, "group_rank": 0, "device": "cpu"}
    own |= {"has_backward": True, "is_last": False, "submod": None}
    stubs = [
        SimpleNamespace(stage_index=at, is_first=not at, **own) for at in range(0, stages, workers)
    ]
    try:
        made = get_schedule_class(SEVERAL.get(name, name))(stubs, micro)
        rows = [made.pipeline_order[worker] for worker in range(workers)]
    except (ValueError, AssertionError, RuntimeError) as error:
        sizes = f"{stages} stages, {workers} workers and {micro} micro-batches"
        raise ScheduleError(f"{name} with {sizes}: {error}") from error
    return of_orders(name, [[p for each in row for p in _places(str(each or ""))] for row in rows])


def read_csv(file: str | Path) -> Schedule:
    """Return the schedule that a file holds, with or without torch's sends; it is validated.

    Raises:
        ScheduleError: a cell that is no action, a task that is missing or stands twice, or an order
            that can't be run; names it.

    Example:
        >>> import tempfile
        >>> from alkit.schedule.flushed import one_f_one_b
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = to_csv(one_f_one_b(2, 2), f"{folder}/1f1b.csv")
        ...     read_csv(f"{folder}/1f1b.csv").workers
        2
    """
    path = Path(file)
    lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    orders = [
        [p for at, cell in enumerate(row) for p in _places(cell, f"row {worker}, cell {at}: ")]
        for worker, row in enumerate(lines)
    ]
    schedule = of_orders(path.stem, orders)
    validate(schedule)
    return schedule


def to_csv(schedule: Schedule, file: str | Path | None = None) -> str:
    """Return a flushed schedule in torch's form, computation alone; write it, if a file is named.

    Raises:
        ScheduleError: tasks that torch has no word for.
    """
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    for worker in range(schedule.lanes):
        own = [task for task in schedule.one_batch(worker) if task.kind != "update"]
        lines.writerow(_cell(schedule, task) for task in own)
    if file is not None:
        Path(file).write_text(text.getvalue(), encoding="utf-8")
    return text.getvalue()


def _places(cell: str, where: str = "") -> list[Place]:
    cell = cell.strip()
    both = re.fullmatch(r"\((.*);(.*)\)OVERLAP_F_B", cell)
    found = [ACTION.fullmatch(each.strip()) for each in (both.groups() if both else (cell,))]
    if None in found and cell and not BETWEEN.fullmatch(cell):
        raise ScheduleError(f"{where}{cell!r} is no action, as 0F0, 1B3, 2I0 or 2W0 are")
    return [(LETTERS[each[2]], int(each[1]), int(each[3])) for each in found if each]


def _cell(schedule: Schedule, task: Task) -> str:
    if task.kind not in WORDS:
        raise ScheduleError(f"{schedule.name} has a {task}, for which torch has no word")
    return f"{task.stage}{WORDS[task.kind]}{task.micro}"
