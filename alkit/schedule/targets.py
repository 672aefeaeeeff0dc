"""Target propagation as a schedule: every block learns its own feedback, then targets descend.

Three blocks, one batch (F forward, L learning of the block's feedback, T target, B backward inside
the block, U update):

    block 0    F        T B U          a target passes through feedback weights: no block needs the
    block 1      F L    T B U          forward weights of another. The costly loops L wait for the
    block 2        F L T B U           block's own features alone, so they run side by side

A target is the one of the block above, sent down by what that block has just learned; with
`direct`, every block gets its own from the output.
"""

from collections.abc import Iterable, Iterator

from alkit.schedule.task import Edge, Schedule, ScheduleError, Task, own_layer

__all__ = ["target_propagation"]


def target_propagation(blocks: int, *, direct: bool = False) -> Schedule:
    """Return the schedule of difference target propagation, a worker a block.

    Args:
        direct: targets come from the output by a map of their own (DDTP), not from block to block.
    Raises:
        ScheduleError: no blocks.
    """
    if blocks < 1:
        raise ScheduleError(f"blocks is {blocks}: it must be at least 1")
    last = blocks - 1

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        kinds = ("forward", *(("learn",) if worker else ()), "target", "backward", "update")
        for batch in batches:
            yield from (Task(kind, worker, batch) for kind in kinds)

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, block, batch, _ = task
        if kind in ("forward", "update"):
            return own_layer(task)
        if kind == "target" and block < last:
            return (Edge("data", Task("target", last if direct else block + 1, batch)),)
        before = {
            "learn": "forward",
            "backward": "target",
            "target": "learn" if block else "forward",
        }
        return (Edge("order", Task(before[kind], block, batch)),)

    return Schedule("ddtp" if direct else "dtp", blocks, blocks, order, edges)
