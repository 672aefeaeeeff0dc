"""Target propagation as a schedule: every block learns its own feedback, then targets descend.

Three blocks, one batch (F forward, L learning of the feedback, T target, B backward inside
the block, U update):

    block 0    F        T B U          the costly loops L wait only for the block's own features,
    block 1      F L    T B U          so they run at the same time; a target comes from the block
    block 2        F L T B U           above, through the feedback that it has just learned
"""

from collections.abc import Sequence

from alkit.schedule.task import (
    REST,
    Edge,
    Place,
    Schedule,
    Task,
    check_positive,
    of_rows,
    own_layer,
    row,
)


def target_propagation(blocks: int, *, owners: Sequence[int] | None = None) -> Schedule:
    """Return the schedule of difference target propagation, by default a worker a block.

    Args:
        owners: the worker of each block, any.
    """
    check_positive(blocks=blocks)
    owned = range(blocks) if owners is None else owners

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, block, batch, _ = task
        if kind in ("update", "forward"):
            return own_layer(task)
        before = {"learn": "forward", "target": "learn" if block else "forward"}
        own = Edge("order", Task(before.get(kind, "target"), block, batch))
        if kind == "target" and block < blocks - 1:
            return own, Edge("data", Task("target", block + 1, batch))
        return (own,)

    rows: list[list[Place]] = []
    for worker in range(max(owned) + 1):
        own = [block for block in range(blocks) if owned[block] == worker]
        learning = [block for block in own if block]  # the lowest has no feedback
        rows.append(row(["forward"], own) + row(["learn"], learning))
        rows[-1] += row(["target"], reversed(own)) + row(REST, own)
    return of_rows("dtp", blocks, rows, edges)
