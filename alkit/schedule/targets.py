"""Target propagation as a schedule: every block learns its own feedback, then targets descend.

Three blocks, one batch (F forward, L learning of the block's feedback, T target, B backward inside
the block, U update):

    block 0    F        T B U          a target passes through feedback weights: no block needs the
    block 1      F L    T B U          forward weights of another. The costly loops L wait for the
    block 2        F L T B U           block's own features alone, so they run side by side

A target is the one of the block above, sent down by what that block has just learned.
"""

from collections.abc import Iterable, Iterator, Sequence

from alkit.schedule.task import Edge, Schedule, ScheduleError, Task, own_layer


def target_propagation(blocks: int, *, owners: Sequence[int] | None = None) -> Schedule:
    """Return the schedule of difference target propagation, by default a worker a block.

    Args:
        owners: the worker of each block, any.
    Raises:
        ScheduleError: no blocks.
    """
    if blocks < 1:
        raise ScheduleError(f"blocks is {blocks}: it must be at least 1")
    last, owned = blocks - 1, list(range(blocks) if owners is None else owners)
    learns = range(1, blocks)

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        own = [block for block in range(blocks) if owned[block] == worker]
        for batch in batches:
            yield from (Task("forward", block, batch) for block in own)
            yield from (Task("learn", block, batch) for block in own if block in learns)
            yield from (Task("target", block, batch) for block in reversed(own))
            for block in own:
                yield from (Task(kind, block, batch) for kind in ("backward", "update"))

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, block, batch, _ = task
        before = "learn" if block in learns else "forward"
        if kind in ("update", "forward"):
            return own_layer(task)
        if kind == "learn":
            return (Edge("order", Task("forward", block, batch)),)
        if kind == "backward":
            return (Edge("order", Task("target", block, batch)),)
        own = Edge("order", Task(before, block, batch))
        if block == last:
            return (own,)
        return own, Edge("data", Task("target", block + 1, batch))

    return Schedule("dtp", blocks, max(owned) + 1, order, edges)
