"""Schedules as torch's pipelining writes and reads them: a row a worker, a cell an action.

    0F0,0F1,,,0B0,0B1          stage 0: forward of micro-batches 0 and 1, two waits, backwards
    ,1F0,1B0,1F1,1B1,          stage 1; waits follow from data here, so empty cells are passed over

F forward, B backward, I and W its halves for the input and the weights. `(0F3;1B0)OVERLAP_F_B` is
one after the other here. What torch adds for links and memory (SEND_F, RECV_B, UNSHARD,
REDUCE_GRAD, ...) is passed over: links follow from the edges, an update ends a batch.
"""

import csv
import io
import re
from pathlib import Path

from alkit.schedule.ordered import LETTERS, of_orders
from alkit.schedule.task import Place, Schedule, ScheduleError, Task
from alkit.schedule.validate import validate

WORDS = {kind: letter for letter, kind in LETTERS.items()}
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
BETWEEN = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")


def read_csv(file: str | Path) -> Schedule:
    """Return the schedule that a file holds, with or without torch's sends; it is validated.

    Raises:
        ScheduleError: a cell that is no action, a task that is missing or stands twice, or an order
            that can't be run; names it.
        FileNotFoundError: there is no such file.

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
    orders: list[list[Place]] = []
    for worker, row in enumerate(lines):
        orders.append([])
        for at, cell in enumerate(row):
            orders[-1] += _places(cell.strip(), f"{path.name}, row {worker}, cell {at}")
    schedule = of_orders(path.stem, orders)
    validate(schedule)
    return schedule


def to_csv(schedule: Schedule, file: str | Path | None = None) -> str:
    """Return a flushed schedule in torch's form, computation alone; write it, if a file is named.

    Raises:
        ScheduleError: free workers, or tasks that torch has no word for.
    """
    if schedule.free:
        raise ScheduleError(f"{schedule.name} has free workers: torch's workers have stages")
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    for worker in range(schedule.workers):
        own = [task for task in schedule.one_batch(worker) if task.kind != "update"]
        lines.writerow(_cell(schedule, task) for task in own)
    if file is not None:
        Path(file).write_text(text.getvalue(), encoding="utf-8")
    return text.getvalue()


def _places(cell: str, where: str) -> list[Place]:
    if inner := re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell):
        return [place for each in inner[1].split(";") for place in _places(each.strip(), where)]
    if found := ACTION.fullmatch(cell):
        return [(LETTERS[found[2]], int(found[1]), int(found[3]))]
    if not cell or BETWEEN.fullmatch(cell):
        return []
    raise ScheduleError(f"{where}: {cell!r} is no action, as 0F0, 1B3, 2I0 or 2W0 are")


def _cell(schedule: Schedule, task: Task) -> str:
    if task.kind not in WORDS:
        raise ScheduleError(f"{schedule.name} has a {task}, for which torch has no word")
    return f"{task.stage}{WORDS[task.kind]}{task.micro}"
