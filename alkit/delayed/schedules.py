"""Schedules of delayed gradients: a worker a module, and a module a stage.

Three modules. Digits are batches; F, B, U = forward, backward, update, and BU is one letter here.

    seq             F0........B0F1........B1      nothing of batch 1 starts before batch 0 has ended
                    ..F0....B0....F1....B1..
                    ....F0B0........F1B1....

    barrier         F0|    F1|    F2|    B0|..    an iteration: all forwards, one after the other,
                      F0|    F1|    B0  |         then all backwards at the same time
                        F0B0|  F1B1|  F2B2|

    gradient_first  F(t) of a module starts when the gradient that its next backward needs is there

    1f1b            F0F1F2....B0F3B1F4B2..        no rule but data: a module has K - k batches in
                    ..F0F1..B0F2B1F3B2F4..        flight and does one forward, one backward
                    ....F0B0F1B1F2B2F3B3..

All but seq have one order on every worker: forwards until K - k batches are in flight, then a
backward, its update, and a forward in turn. They differ in their edges:

    data            F(k, m) after F(k - 1, m);  B(k, m) after B(k + 1, m)
    gradient_first  F(k, t) after B(k + 1, t - d)             d = K - 1 - k, the delay of module k
    barrier         F(0, t) after U(k, t - 1 - d) of all k;  B(k, t - d) after F(K - 1, t)
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from alkit.delayed.methods import METHODS, ORDERS, Method, method_named
from alkit.schedule.flushed import gpipe, one_f_one_b, shared_by_neighbours, zero_bubble
from alkit.schedule.task import Edge, Schedule, ScheduleError, Task, check_positive
from alkit.schedule.torch_orders import SEVERAL as SHARED
from alkit.schedule.torch_orders import read_csv, torch_order

FLUSHED = {"gpipe": gpipe, "zero_bubble": zero_bubble}  # others: 1f1b
Own = Schedule | str | Path  # of the user: by itself, or a file of torch's form


def schedule_for(
    method: str, stages: int, micro: int = 1, *, workers: int | None = None
) -> Schedule:
    """Return the schedule of a method for a number of modules (stages).

    Args:
        micro: micro-batches per batch, for the methods that accumulate.
        workers: of SHARED, default half as many as modules; of other flushed methods fewer workers
            share neighbouring modules, default one each.
    Raises:
        ValueError: an unknown method, or numbers that don't fit it.
    """
    chosen = method_named(method)
    _check(chosen, stages, micro)
    if method in SHARED:
        return torch_order(method, stages, workers or max(1, stages // 2), micro)
    if chosen.order == "flushed":
        fewer = workers or stages
        made = replace(FLUSHED.get(method, one_f_one_b)(fewer, micro), name=method)
        return made if fewer == stages else shared_by_neighbours(made, stages)

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        """Keep one batch in flight, or K - k (micro-)batches: DDG, FR, PipeDream and 2BW."""
        most = 1 if chosen.order == "seq" else stages - worker
        flying: deque[Task] = deque()
        for batch in batches:
            for m in range(micro):
                flying.append(Task("forward", worker, batch, m))
                yield flying[-1]
                if len(flying) == most:
                    yield from back(flying.popleft())
        while flying:
            yield from back(flying.popleft())

    def back(forward: Task) -> Iterator[Task]:
        yield forward._replace(kind="backward")
        if forward.micro == micro - 1:
            yield Task("update", *forward[1:3])

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, _ = task
        if kind == "update":
            return (Edge("order", Task("backward", stage, batch, micro - 1)),)
        own = [Edge("order", task._replace(kind="forward"))] if kind == "backward" else []
        other = stage + (1 if kind == "backward" else -1)
        handed = [Edge("data", task._replace(stage=other))] if 0 <= other < stages else []
        waits = (Edge("barrier", each) for each in _barriers(chosen.order, task, stages - 1))
        return *handed, *own, *waits

    return Schedule(method, stages, stages, order, edges, chosen.staleness(stages))


def _barriers(order: str, task: Task, last: int) -> list[Task]:
    """Return the tasks that a task waits for besides data, because the method wants it so."""
    kind, stage, batch, _ = task
    if (order, kind) == ("gradient_first", "forward") and stage < last:
        return [Task("backward", stage + 1, batch - (last - stage))]
    if (order, kind) == ("barrier", "forward") and stage == 0:
        return [Task("update", k, batch - 1 - (last - k)) for k in range(1, last + 1)]
    if (order, kind) == ("barrier", "backward") and stage < last:
        return [Task("forward", last, batch + last - stage)]
    return []


def _check(method: Method, stages: int, micro: int) -> None:
    check_positive(stages=stages, micro=micro)
    if micro > 1 and not method.accumulates:
        names = ", ".join(name for name, each in METHODS.items() if each.accumulates)
        said = f"{method.name} updates after every batch: micro-batches are for {names}"
        raise ScheduleError(said)
    if method.name == "2bw" and micro < stages:
        raise ScheduleError(
            f"2bw with {micro} micro-batches and {stages} stages: give at least as many as stages,"
            " so that two versions of the weights are enough"
        )


def own_schedule(given: Own, method: Method, modules: int, micro: int) -> tuple[Schedule, int]:
    """Look at a user's schedule of a flushed method; return it, and its micro-batches a batch."""
    if method.order != "flushed":
        names = ", ".join(ORDERS)
        raise ScheduleError(f"schedule= is for {names}, whose gradients no order changes")
    made = read(given)
    own = 1 + max(m for *_, m in made.places)
    if made.stages != modules or micro not in (1, own) or made.free:
        raise ScheduleError(
            f"{made.name} has {made.stages} stages and {own} micro-batches, and there are"
            f" {modules} modules and {micro} micro-batches: give cuts= and micro= that fit"
        )
    due = [0] * made.stages
    for kind, stage, m in made.places:  # stages take their micro-batches as a batch is cut
        if kind == "forward" and m != due[stage]:
            raise ScheduleError(
                f"{made.name}: stage {stage} runs the forward of micro-batch {m} before"
                f" {due[stage]}: let every stage take them in their order"
            )
        due[stage] += kind == "forward"
    return made, own


def read(given: Own) -> Schedule:
    """Return a schedule that a user gives by itself or by a file."""
    if isinstance(given, Schedule):
        return given
    if Path(given).suffix != ".csv":
        raise ScheduleError(f"schedule is {str(given)!r}: give a Schedule or a .csv file")
    return read_csv(given)


def most_in_flight(schedule: Schedule) -> list[int]:
    """Return the most micro-batches of one batch that each stage holds."""
    now, most = [0] * schedule.stages, [0] * schedule.stages
    for kind, stage, _ in schedule.places:
        now[stage] += (kind == "forward") - (kind in ("backward", "backward_weight"))
        most[stage] = max(most[stage], now[stage])
    return most
