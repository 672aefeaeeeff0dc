"""What backprop waits for, and which of it a schedule removes, read off its edges.

forward     the highest stage's forward waits for the lowest stage's of the same batch
backward    the lowest stage's backward waits for the highest stage's forward of the same batch
update      the lowest stage's forward waits for the highest stage's of the batch before
weights     a gradient comes down through the forward weights of the stage above (weight transport)
"""

from alkit.schedule.task import Schedule, Task
from alkit.schedule.validate import ancestors_of

LOCKS = ("forward", "backward", "update", "weights")
BATCH = 4  # one that has others before and after it


def removed_locks(schedule: Schedule, *, transports: bool = True) -> tuple[str, ...]:
    """Return which of `LOCKS` no order of the schedule's tasks has.

    Args:
        transports: gradients that come down pass through forward weights.

    Example:
        >>> from alkit.schedule.task import al, al_pipeline, block_by_block
        >>> [removed_locks(made(3)) for made in (block_by_block, al, al_pipeline)]
        [(), ('backward', 'weights'), ('backward', 'update', 'weights')]
    """
    last, back = schedule.stages - 1, _backward(schedule)
    most = max(micro for _, _, micro in schedule.places)
    before = {
        "forward": (Task("forward", 0, BATCH), Task("forward", last, BATCH)),
        "backward": (Task("forward", last, BATCH), Task(back, 0, BATCH)),
        "update": (Task("forward", last, BATCH - 1, most), Task("forward", 0, BATCH)),
    }
    ancestors = ancestors_of(schedule)
    held = {lock for lock, pair in before.items() if ancestors.precedes(*pair)}
    if transports and _hands_gradients_down(schedule, Task(back, 0, BATCH)):
        held.add("weights")
    return tuple(lock for lock in LOCKS if lock not in held)


def _backward(schedule: Schedule) -> str:
    """Return the kind of task that hands gradients on: half of a backward, if it comes in two."""
    kinds = {kind for kind, *_ in schedule.places}
    return "backward" if "backward" in kinds else "backward_input"


def _hands_gradients_down(schedule: Schedule, task: Task) -> bool:
    """Say whether the payload of a backward is another backward's, over a link or not."""
    for edge in schedule.edges(task):
        if edge.kind == "data":
            sent = edge.task.kind == "send" and _hands_gradients_down(schedule, edge.task)
            return sent or edge.task.kind == task.kind or edge.task.kind.startswith("backward")
    return False
