"""Pipelines of backprop as schedules: micro-batches flow up and their gradients down, then a flush.

Three stages, four micro-batches, as digits (F, B, U = forward, backward, update; i, w = backward
for the input and for the weights). After U the next batch may start:

    gpipe        F0F1F2F3............B0B0B1B1B2B2B3B3U
                 ..F0F1F2F3......B0B0B1B1B2B2B3B3U
                 ....F0F1F2F3B0B0B1B1B2B2B3B3U

    1f1b         F0F1F2........B0B0F3B1B1..B2B2..B3B3U    as fast; stage k of K holds K - k
                 ..F0F1....B0B0F2B1B1F3B2B2..B3B3U        micro-batches, not all
                 ....F0B0B0F1B1B1F2B2B2F3B3B3U

    zero_bubble  F0F1F2....i0w0F3i1w1i2w2i3w3U            i hands the gradient on at once; w can
                 ..F0F1..i0F2i1w0F3i2w1i3w2w3U            wait and fills the gaps (ZB-H1 of Qi et
                 ....F0i0F1i1F2i2w0F3i3w1w2w3U            al. 2023)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from alkit.schedule.task import Edge, Place, Schedule, ScheduleError, Task, check_positive, of_rows

HALVES = ("backward_input", "backward_weight")
KINDS = ("forward", "backward", *HALVES)


def of_orders(name: str, orders: Sequence[Sequence[Place]]) -> Schedule:
    """Return the schedule that runs these orders batch after batch, and an update a stage.

    The order of a worker has (kind, stage, micro-batch): "forward", "backward", or its halves
    "backward_input" and "backward_weight".
    """
    there = {place for order in orders for place in order}
    if not there:
        raise ScheduleError(f"{name} has no task")
    stages = 1 + max(stage for _, stage, _ in there)
    micro = 1 + max(m for _, _, m in there)
    for m, stage in ((m, stage) for m in range(micro) for stage in range(stages)):
        made = {kind for kind in KINDS if (kind, stage, m) in there}
        if made not in ({"forward", "backward"}, {"forward", *HALVES}):
            raise ScheduleError(
                f"{name}: stage {stage} needs a forward and a backward of micro-batch {m}, whole or"
                " in its two halves, I and W (older files of torch have B for I)"
            )

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, m = task
        if kind == "forward":
            below = [Edge("data", Task(kind, stage - 1, batch, m))] if stage else []
            return Edge("weights", Task("update", stage, batch - 1)), *below
        before = [("backward_input" if kind == "backward_weight" else "forward", m)]
        if kind == "update":
            before = [*product(("backward", "backward_weight"), range(micro))]
        own = [("order", (each, stage, m)) for each, m in before]
        above = [("data", (each, stage + 1, m)) for each in ("backward", "backward_input")]
        found = own if kind in ("update", "backward_weight") else own + above
        return tuple(Edge(why, Task(*at[:2], batch, at[2])) for why, at in found if at in there)

    updates = [[("update", at, 0) for at in sorted({own for _, own, _ in row})] for row in orders]
    rows = [[*row, *own] for row, own in zip(orders, updates, strict=True)]
    return of_rows(name, stages, rows, edges)


def gpipe(stages: int, micro: int) -> Schedule:
    """All forwards of the micro-batches of a batch, then all backwards (Huang et al. 2019)."""
    check_positive(stages=stages, micro=micro)
    kinds = ("forward", "backward")
    return of_orders("gpipe", [[*product(kinds, (k,), range(micro))] for k in range(stages)])


def one_f_one_b(stages: int, micro: int) -> Schedule:
    """One forward, one backward in turn, once a stage has K - k of them (Narayanan et al. 2021)."""
    check_positive(stages=stages, micro=micro)
    return of_orders("1f1b", [[*_in_turn(stages, micro, k)] for k in range(stages)])


def zero_bubble(stages: int, micro: int) -> Schedule:
    """1F1B with the backward in two: stage k lets k backwards for the weights wait.

    No stage holds more than the first one of 1F1B (ZB-H1, Qi et al. 2023).
    """
    check_positive(stages=stages, micro=micro)
    return of_orders("zero_bubble", [[*_in_halves(stages, micro, k)] for k in range(stages)])


def _in_turn(stages: int, micro: int, stage: int) -> Iterator[Place]:
    ahead = min(stages - stage, micro)
    yield from (("forward", stage, m) for m in range(ahead))
    for m in range(micro):
        yield "backward", stage, m
        if m + ahead < micro:
            yield "forward", stage, m + ahead


def _in_halves(stages: int, micro: int, stage: int) -> Iterator[Place]:
    for kind, _, m in _in_turn(stages, micro, stage):
        yield "forward" if kind == "forward" else "backward_input", stage, m
        if kind == "backward" and m >= stage:
            yield "backward_weight", stage, m - stage
    yield from (("backward_weight", stage, m) for m in range(max(0, micro - stage), micro))


def with_norm(schedule: Schedule) -> Schedule:
    """Let a flush wait for the norm of all gradients: N takes N of the stage above, U the N of all.

    stage 0   B3   N U
    stage 1   B3 N   U
    """

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, _ = task
        if kind == "update":
            return (Edge("data" if stage else "order", Task("norm", 0, batch)),)
        own = schedule.edges(task if kind != "norm" else Task("update", stage, batch))
        above = kind == "norm" and stage + 1 < schedule.stages
        return *own, *((Edge("data", Task("norm", stage + 1, batch)),) if above else ())

    rows = []
    for lane in range(schedule.lanes):
        own = [task.place for task in schedule.one_batch(lane) if task.kind != "update"]
        stages = sorted({stage for _, stage, _ in own})
        norms = [("norm", stage, 0) for stage in stages[::-1]]
        rows.append([*own, *norms, *(("update", stage, 0) for stage in stages)])
    return of_rows(schedule.name, schedule.stages, rows, edges)


def shared_by_neighbours(schedule: Schedule, stages: int) -> Schedule:
    """Let each worker of a pipeline run neighbouring stages as it ran its one; no gradient changes.

    Of three stages, the first of gpipe's two workers runs F0 F1 B1 B0 U0 U1.
    """
    workers = schedule.workers
    if stages < workers:
        raise ScheduleError(f"{stages} stages for {workers} workers: give each one or more")

    def order(worker: int) -> Iterator[Place]:
        own = range(stages * worker // workers, stages * (worker + 1) // workers)
        for kind, _, _, m in schedule.one_batch(worker):
            if kind != "update":
                yield from ((kind, at, m) for at in (own if kind == "forward" else own[::-1]))

    return of_orders(schedule.name, [list(order(worker)) for worker in range(workers)])


def block_by_block(blocks: int) -> Schedule:
    """Backprop with a stage a block, on one worker: F0 F1 F2 B2 B1 B0 U0 U1 U2."""
    check_positive(blocks=blocks)
    return replace(shared_by_neighbours(gpipe(1, micro=1), blocks), name="bp")
