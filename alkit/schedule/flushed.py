"""Pipelines of backprop as schedules: micro-batches flow up and their gradients down, then a flush.

Three stages, four micro-batches (F, B = forward, backward; i, w = backward for the input and for
the weights; digits are micro-batches; U = update, after which the next batch may start):

    gpipe        F0F1F2F3............B0B0B1B1B2B2B3B3U
                 ..F0F1F2F3......B0B0B1B1B2B2B3B3U
                 ....F0F1F2F3B0B0B1B1B2B2B3B3U

    1f1b         F0F1F2........B0B0F3B1B1..B2B2..B3B3U    as fast; stage k of K holds K - k
                 ..F0F1....B0B0F2B1B1F3B2B2..B3B3U        micro-batches, not all
                 ....F0B0B0F1B1B1F2B2B2F3B3B3U

    zero_bubble  F0F1F2....i0w0F3i1w1i2w2i3w3U            i hands the gradient on at once; w can
                 ..F0F1..i0F2i1w0F3i2w1i3w2w3U            wait and fills the gaps (ZB-H1 of Qi et
                 ....F0i0F1i1F2i2w0F3i3w1w2w3U            al. 2023)

With several stages a worker (the first digit is the stage), torch computes the order, see
`torch_orders`. Two workers, four stages; on a V the first worker has the first and the last:

    interleaved_1f1b   F00F01F20F21 ... B20B21B00B01U0U2      Narayanan et al. 2021
                          F10F11F30B30F31B31B10B11U1U3
    looped_bfs         F00F01F20F21 ... B21B20B01B00U0U2      Lamy-Poirier 2023
                          F10F11F30F31B31B30B11B10U1U3
    zbv                F00F01F02F30i30w30F31i31w31i00w00 ...  Qi et al. 2023, section 6
                          F10F20F11F21i20w20F12i10w10 ...
    dualpipev          F00F01F02F30i30w30F31F03B31B31 ...     DeepSeek-AI 2024, as a V
                          F10F20F11F21F12B20B20F22B10 ...
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from alkit.schedule.task import Edge, Place, Schedule, ScheduleError, Task

HALVES = ("backward_input", "backward_weight")
BACKWARDS = ("backward", "backward_input")  # what hands a gradient on
KINDS = ("forward", "backward", *HALVES)


def of_orders(name: str, orders: Sequence[Sequence[Place]]) -> Schedule:
    """Return the schedule that runs these orders batch after batch, and an update a stage.

    Args:
        orders: of each worker, (kind, stage, micro-batch): "forward", "backward", or its halves
            "backward_input" and "backward_weight".
    Raises:
        ScheduleError: a stage on two workers, a task twice, or one that is missing; names it.
    """
    owner, micro = _checked(name, orders)
    stages = len(owner)
    there = {place for order in orders for place in order}

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        own = [stage for stage in range(stages) if owner[stage] == worker]
        for batch in batches:
            yield from (Task(kind, stage, batch, m) for kind, stage, m in orders[worker])
            yield from (Task("update", stage, batch) for stage in own)

    def last(stage: int, m: int) -> str:
        return "backward" if ("backward", stage, m) in there else "backward_weight"

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, m = task
        if kind == "update":
            return tuple(
                Edge("order", Task(last(stage, each), stage, batch, each)) for each in range(micro)
            )
        if kind == "backward_weight":
            return (Edge("order", Task("backward_input", stage, batch, m)),)
        if kind == "forward":
            weights = Edge("weights", Task("update", stage, batch - 1))
            below = [Edge("data", Task(kind, stage - 1, batch, m))] if stage else []
            return (weights, *below)
        above = [(each, stage + 1, m) for each in BACKWARDS if (each, stage + 1, m) in there]
        data = [Edge("data", Task(each, at, batch, m)) for each, at, _ in above]
        return (Edge("order", Task("forward", stage, batch, m)), *data)

    return Schedule(name, stages, len(orders), order, edges)


def gpipe(stages: int, micro: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019).

    Args:
        micro: micro-batches per batch.
    """

    def order(worker: int) -> Iterator[Place]:
        yield from (("forward", worker, m) for m in range(micro))
        yield from (("backward", worker, m) for m in range(micro))

    return _flushed("gpipe", stages, micro, order)


def one_f_one_b(stages: int, micro: int) -> Schedule:
    """One forward, one backward in turn, once as many forwards have run as there are stages left.

    Narayanan et al. 2021, without weight versions; torch's `Schedule1F1B`.
    """
    return _flushed("1f1b", stages, micro, partial(_in_turn, stages, micro))


def _in_turn(stages: int, micro: int, worker: int) -> Iterator[Place]:
    ahead = min(stages - worker, micro)
    yield from (("forward", worker, m) for m in range(ahead))
    for m in range(micro):
        yield "backward", worker, m
        if m + ahead < micro:
            yield "forward", worker, m + ahead


def zero_bubble(stages: int, micro: int) -> Schedule:
    """1F1B with the backward in two: for the input at once, for the weights a little later.

    Stage k lets k backwards for the weights wait, the last of them to the end, where 1F1B idles;
    no stage holds more than 1F1B's first (ZB-H1, Qi et al. 2023).
    """

    def order(worker: int) -> Iterator[Place]:
        ahead = min(stages - worker, micro)
        yield from (("forward", worker, m) for m in range(ahead))
        for m in range(micro):
            yield "backward_input", worker, m
            if m >= worker:
                yield "backward_weight", worker, m - worker
            if m + ahead < micro:
                yield "forward", worker, m + ahead
        late = range(max(0, micro - worker), micro)
        yield from (("backward_weight", worker, m) for m in late)

    return _flushed("zero_bubble", stages, micro, order)


def shared_by_neighbours(schedule: Schedule, stages: int) -> Schedule:
    """Let each worker of a pipeline run neighbouring stages as it ran its one; no gradient changes.

    Example:
        >>> shared = shared_by_neighbours(gpipe(2, micro=1), stages=3)
        >>> " ".join(f"{kind[0]}{stage}" for kind, stage, *_ in shared.one_batch(0))
        'f0 f1 b1 b0 u0 u1'
    Raises:
        ScheduleError: fewer stages than workers.
    """
    workers = schedule.workers
    if stages < workers:
        raise ScheduleError(f"{stages} stages for {workers} workers: give each one or more")
    starts = [stages * worker // workers for worker in range(workers + 1)]
    orders: list[list[Place]] = []
    for worker, (low, high) in enumerate(zip(starts, starts[1:], strict=False)):
        orders.append([])
        for kind, _, _, m in schedule.one_batch(worker):
            own = range(low, high) if kind == "forward" else reversed(range(low, high))
            orders[-1] += [(kind, stage, m) for stage in own if kind != "update"]
    return of_orders(schedule.name, orders)


def _flushed(
    name: str, stages: int, micro: int, order: Callable[[int], Iterator[Place]]
) -> Schedule:
    for what, value in (("stages", stages), ("micro", micro)):
        if value < 1:
            raise ScheduleError(f"{what} is {value}: it must be at least 1")
    return of_orders(name, [list(order(worker)) for worker in range(stages)])


def _checked(name: str, orders: Sequence[Sequence[Place]]) -> tuple[list[int], int]:
    """Return the worker of each stage, and how many micro-batches there are."""
    owner: dict[int, int] = {}
    seen: set[Place] = set()
    for worker, order in enumerate(orders):
        for place in order:
            kind, stage, m = place
            if owner.setdefault(stage, worker) != worker:
                raise ScheduleError(
                    f"{name}: stage {stage} is on workers {owner[stage]} and {worker}: give it one"
                )
            if place in seen:
                raise ScheduleError(
                    f"{name}: {kind} of stage {stage}, micro-batch {m}, stands twice"
                )
            seen.add(place)
    if not seen:
        raise ScheduleError(f"{name} has no task")
    stages = range(max(owner) + 1)
    micro = 1 + max((m for _, stage, m in seen if stage == 0), default=-1)
    for stage in stages:
        for m in range(micro):
            made = {kind for kind in KINDS if (kind, stage, m) in seen}
            if made not in ({"forward", "backward"}, {"forward", *HALVES}):
                raise ScheduleError(
                    f"{name}: stage {stage} needs a forward and a backward of micro-batch {m},"
                    " whole or in its two halves"
                )
    if odd := sorted(place for place in seen if place[2] >= micro):
        raise ScheduleError(
            f"{name}: stage {odd[0][1]} has micro-batch {odd[0][2]}, and stage 0 has {micro}: give"
            " all stages the same"
        )
    return [owner[stage] for stage in stages], micro
