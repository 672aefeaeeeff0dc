"""Find which waits of backprop a schedule removes, from its edges.

forward     the forward of the highest stage waits for the lowest, in the same batch
backward    the backward of the lowest stage waits for the forward of the highest, in the same batch
update      the forward of the lowest stage waits for the forward of the highest, a batch before
weights     a gradient comes down through the forward weights of the stage above (weight transport)
"""

from alkit.schedule.task import Schedule, Task
from alkit.schedule.validate import Ancestors

LOCKS = ("forward", "backward", "update", "weights")
BATCH = 4  # one that has others before and after it


def removed_locks(schedule: Schedule) -> tuple[str, ...]:
    """Return which of `LOCKS` no order of the schedule's tasks has.

    Example:
        >>> from alkit.schedule.flushed import block_by_block
        >>> from alkit.schedule.task import al, al_pipeline
        >>> [removed_locks(made(3)) for made in (block_by_block, al, al_pipeline)]
        [(), ('backward', 'weights'), ('backward', 'update', 'weights')]
    """
    last, kinds = schedule.stages - 1, {kind for kind, *_ in schedule.places}
    lowest = Task("backward" if "backward" in kinds else "backward_input", 0, BATCH)
    most = max(micro for _, _, micro in schedule.places)
    precedes = Ancestors(schedule).precedes
    held = {
        "forward": precedes(Task("forward", 0, BATCH), Task("forward", last, BATCH)),
        "backward": precedes(Task("forward", last, BATCH), lowest),
        "update": precedes(Task("forward", last, BATCH - 1, most), Task("forward", 0, BATCH)),
        "weights": _gradients_descend(schedule, lowest),
    }
    return tuple(lock for lock in LOCKS if not held[lock])


def _gradients_descend(schedule: Schedule, task: Task) -> bool:
    """Say whether the payload of a backward is from another backward, over a link or not."""
    return any(
        other.kind.startswith("backward")
        or (other.kind == "send" and _gradients_descend(schedule, other))
        for kind, other in schedule.edges(task)
        if kind == "data"
    )
