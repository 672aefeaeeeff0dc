"""torch's own orders of flushed pipelines, by name or from a file.

    0F0,0F1,,,0B0,0B1          a row a worker, a cell an action: stage, letter, micro-batch
    ,1F0,1B0,1F1,1B1,          waits follow from data here, so empty cells are passed over

F forward, B backward, I and W its halves for the input and the weights. `(0F3;1B0)OVERLAP_F_B` is
one after the other here. Cells for links and memory (SEND_F, UNSHARD, ...) are passed over, too.

Workers have several stages in the orders of SEVERAL; on a V (the last two) the first worker has the
first stage and the last.
"""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from alkit.schedule.flushed import KINDS, of_orders
from alkit.schedule.task import Place, Schedule, ScheduleError, check_positive
from alkit.schedule.validate import validate

SEVERAL = {  # as torch calls them
    "interleaved_1f1b": "Interleaved1F1B",  # Narayanan et al. 2021
    "looped_bfs": "LoopedBFS",  # Lamy-Poirier 2023
    "zbv": "ZBVZeroBubble",  # Qi et al. 2023, section 6
    "dualpipev": "DualPipeV",  # DeepSeek-AI 2024, as a V
}
WORDS = dict(zip(KINDS, "FBIW", strict=True))
ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
CELL = re.compile(  # an action, two at once, or none
    rf"{ACTION.pattern}|\({ACTION.pattern}; *{ACTION.pattern}\)OVERLAP_F_B"
    r"|\d+((SEND|RECV)_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*|"
)


def torch_order(name: str, stages: int, workers: int, micro: int) -> Schedule:
    """Return a schedule whose order torch computes, as its runtime does.

    Args:
        name: of SEVERAL, or the name that torch has for another schedule.
    Raises:
        ScheduleError: sizes that don't fit; the message is from torch.
    """
    # here and not above: it brings torch's compiler with it, which takes seconds
    from torch.distributed.pipelining.schedules import get_schedule_class

    check_positive(stages=stages, workers=workers, micro=micro)
    own = {"num_stages": stages, "group_size": workers, "group_rank": 0, "device": "cpu"}
    own |= {"has_backward": True, "is_first": True, "is_last": False, "submod": None}
    stubs = [SimpleNamespace(stage_index=at, **own) for at in range(0, stages, workers)]
    try:
        if stages % workers:
            raise ValueError("give stages that workers can share alike")
        orders = get_schedule_class(SEVERAL.get(name, name))(stubs, micro).pipeline_order
    except ValueError as error:
        sizes = f"{stages} stages, {workers} workers and {micro} micro-batches"
        raise ScheduleError(f"{name} with {sizes}: {error}") from error
    rows = (map(str, filter(None, orders[worker])) for worker in range(workers))
    return of_orders(name, [_places(row) for row in rows])


def read_csv(file: str | Path) -> Schedule:
    """Return the schedule that a file holds, with or without sends of torch; it is validated.

    Raises:
        ScheduleError: a cell that isn't an action, or an order that can't be run; names it.
    """
    path = Path(file)
    rows = enumerate(csv.reader(path.read_text("utf-8-sig", "replace").splitlines()))
    orders = [_places(row, f"row {at}, ") for at, row in rows if "".join(row).strip()]
    schedule = of_orders(path.stem, orders)
    validate(schedule)
    return schedule


def to_csv(schedule: Schedule) -> str:
    """Return a flushed schedule in torch's form, without updates."""
    lanes = (schedule.one_batch(lane) for lane in range(schedule.lanes))
    cells = ([f"{s}{WORDS[k]}{m}" for k, s, _, m in lane if k != "update"] for lane in lanes)
    return "".join(",".join(row) + "\n" for row in cells)


def _places(cells: Iterable[str], where: str = "") -> list[Place]:
    found: list[Place] = []
    for at, cell in enumerate(cells):
        if not CELL.fullmatch(cell.strip()):
            said = f"cell {at}: {cell!r} is no action, as 0F0, 1B3, 2I0 or 2W0 are"
            raise ScheduleError(where + said)
        found += [(KINDS["FBIW".index(w)], int(s), int(m)) for s, w, m in ACTION.findall(cell)]
    return found
