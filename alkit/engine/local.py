"""Execute a schedule: on one thread (the oracle of all others), or on a thread a worker.

A stage is an object with a method a kind of task: `forward(payload, batch, micro)`,
`backward(...)` and `update(...)`. What a task returns goes along the schedule's data edges to the
tasks that take it; `None` is handed to nobody. Every run begins with a proof that the schedule can
be run (`alkit.schedule.validate`).

Threads share one board, under one lock:

    caller    feed batch 0, 1, 2, ...            wait until all is done, or raise the first error
                   |                                             ^
    board     payloads on their way  |  tasks done  |  first failure  |  stop
                   v          ^
    worker    take next task -> wait for what it waits for -> run it -> post the result

A worker takes the tasks of its own lane in their order; free workers take those of all lanes, the
most urgent first (`alkit.engine.free`). A worker that fails posts its exception and stops the
board; the others end after the task they are in.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from alkit.engine.board import Board, PullFeed, Stopped
from alkit.engine.caller import CallerState
from alkit.engine.free import FreeLanes
from alkit.engine.stage import Stage
from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Timeline
from alkit.schedule.urgency import FEED_AHEAD

__all__ = ["execute", "operator_threads", "run_single", "run_threads"]


def execute(
    schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run all batches: on the calling thread if there is one worker, else on a thread a worker.

    Args:
        stages: one a stage of the schedule.
        batches: what stage 0's forward takes; pulled by the calling thread, a little ahead.
        threads: operator threads of each worker.
    Raises:
        ValueError: no batches.
        Exception: the first one of any worker, with its traceback and a note that names the task.
    """
    run = run_single if schedule.workers == 1 else run_threads
    return run(schedule, stages, batches, threads=threads)


def run_single(
    schedule: Schedule,
    stages: Sequence[Stage],
    batches: Iterable[Any],
    *,
    threads: int = 1,
    choose: Callable[[int], int] | None = None,
) -> Timeline:
    """Run every lane's tasks on the calling thread, in an order that the schedule allows.

    Args:
        choose: given the number of lanes that could go on, returns which one does; default the
            first. A random choice walks through the interleavings that threads may take.
    """
    board = Board(schedule, stages)
    feed = PullFeed(board, batches)
    orders = [schedule.order(lane, feed.numbers()) for lane in range(schedule.lanes)]
    ahead: dict[int, Task] = {}
    with operator_threads(threads), CallerState.here().training():
        while True:
            for lane, order in enumerate(orders):
                if lane not in ahead and (task := next(order, None)) is not None:
                    ahead[lane] = task
            ready = [lane for lane, task in sorted(ahead.items()) if not board.missing(task)]
            if not ready:
                break
            lane = ready[choose(len(ready)) if choose else 0]
            board.perform(ahead.pop(lane), 0 if schedule.free else lane)
    if ahead:
        raise RuntimeError(f"{schedule.name} deadlocks at {', '.join(map(str, ahead.values()))}")
    return board.timeline()


def run_threads(
    schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run every worker's tasks on a thread of its own; no thread outlives the call."""
    board = Board(schedule, stages)
    board.free = FreeLanes(board) if schedule.free else None
    with operator_threads(threads), _workers(board, threads):
        for batch, payload in enumerate(batches):
            board.put(payload, batch)
            board.wait_until(lambda: board.started > board.fed - FEED_AHEAD)
        board.close()
        board.wait_until(lambda: board.idle == schedule.workers)
    return board.timeline()


@contextmanager
def _workers(board: Board, threads: int) -> Iterator[None]:
    """Start the workers; at the end, or at any exception, stop and join them."""
    caller = CallerState.here()
    crew = [
        threading.Thread(
            target=_work, args=(board, worker, threads, caller), name=f"alkit-worker-{worker}"
        )
        for worker in range(board.schedule.workers)
    ]
    try:
        for thread in crew:
            thread.start()
        yield
    finally:
        board.stop()
        for thread in crew:
            if thread.ident is not None:
                thread.join()


def _work(board: Board, worker: int, threads: int, caller: CallerState) -> None:
    """Run this worker's tasks until they end, fail or are stopped."""
    try:
        torch.set_num_threads(threads)
        with caller.training():
            for task in board.tasks(worker):
                board.perform(task, worker)
        board.rest()
    except Stopped:
        pass
    except BaseException as error:  # whatever it is, the caller raises it
        board.fail(error)


@contextmanager
def operator_threads(threads: int) -> Iterator[None]:
    """Set the operator threads of the calling thread, and give it back its own at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
