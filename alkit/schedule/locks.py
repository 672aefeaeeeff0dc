"""What backprop waits for, and which of it a schedule removes, read off its edges.

backward    the lowest stage's backward waits for the highest stage's forward of the same batch
update      the lowest stage's forward waits for the highest stage's backward of the batch before
"""

from alkit.schedule.task import Schedule, Task
from alkit.schedule.validate import ancestors_of

__all__ = ["LOCKS", "removed_locks"]

LOCKS = ("backward", "update")
BATCH = 4  # one that has others before and after it


def removed_locks(schedule: Schedule) -> tuple[str, ...]:
    """Return which of `LOCKS` no order of the schedule's tasks has.

    Example:
        >>> from alkit.schedule.task import al, al_pipeline, block_by_block
        >>> [removed_locks(made(3)) for made in (block_by_block, al, al_pipeline)]
        [(), ('backward',), ('backward', 'update')]
    """
    last, back = schedule.stages - 1, _backward(schedule)
    most = max(micro for _, _, micro in schedule.places)
    before = {
        "backward": (Task("forward", last, BATCH), Task(back, 0, BATCH)),
        "update": (Task(back, last, BATCH - 1, most), Task("forward", 0, BATCH)),
    }
    ancestors = ancestors_of(schedule)
    return tuple(lock for lock in LOCKS if not ancestors.precedes(*before[lock]))


def _backward(schedule: Schedule) -> str:
    """Return the kind of task that hands gradients on: half of a backward, if it comes in two."""
    kinds = {kind for kind, *_ in schedule.places}
    return "backward" if "backward" in kinds else "backward_input"
