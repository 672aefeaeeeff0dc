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

A worker that fails posts its exception and stops the board; the others end after the task they are
in.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch.profiler import record_function

from alkit.engine.caller import CallerState
from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.schedule.validate import validate

__all__ = ["Stage", "execute", "operator_threads", "run_single", "run_task", "run_threads"]

FEED_AHEAD = 2  # batches that the loader may be ahead of the first stage


class Stage(Protocol):
    """The mathematics of one stage; the engine sees to order, hand-over and threads."""

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take the previous stage's output (stage 0: the batch); return the next stage's input."""

    def backward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take what the next stage's backward returned, if it did; return the same for the
        previous."""

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimisers."""


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
    """Run every worker's tasks on the calling thread, in an order that the schedule allows.

    Args:
        choose: given the number of workers that could go on, returns which one does; default the
            first. A random choice walks through the interleavings that threads may take.
    """
    board = _Board(schedule, stages)
    feed = _PullFeed(board, batches)
    orders = [schedule.order(w, feed.numbers()) for w in range(schedule.workers)]
    ahead: dict[int, Task] = {}
    with operator_threads(threads), CallerState.here().training():
        while True:
            for worker, order in enumerate(orders):
                if worker not in ahead and (task := next(order, None)) is not None:
                    ahead[worker] = task
            ready = [w for w, task in sorted(ahead.items()) if not board.missing(task)]
            if not ready:
                break
            worker = ready[choose(len(ready)) if choose else 0]
            board.perform(ahead.pop(worker), worker)
    if ahead:
        raise RuntimeError(f"{schedule.name} deadlocks at {', '.join(map(str, ahead.values()))}")
    return board.timeline()


def run_threads(
    schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run every worker's tasks on a thread of its own; no thread outlives the call."""
    board = _Board(schedule, stages)
    with operator_threads(threads), _workers(board, threads):
        for batch, payload in enumerate(batches):
            board.put(payload, batch)
            board.wait_until(lambda: board.started > board.fed - FEED_AHEAD)
        board.close()
        board.wait_until(lambda: board.idle == schedule.workers)
    return board.timeline()


def run_task(stages: Sequence[Stage], task: Task, payload: Any, where: str) -> Any:
    """Run a task; an error is noted with `where`, and torch's profiler sees the task as a range.

    It follows the calling thread; for the workers' as well, give it
    `experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`.
    """
    # a range takes microseconds, also when nobody looks
    seen = record_function(f"alkit {task.kind} {task.stage}") if _profiled() else nullcontext()
    try:
        with seen:
            return getattr(stages[task.stage], task.kind)(payload, task.batch, task.micro)
    except BaseException as error:
        error.add_note(f"alkit: in {task} ({where})")
        raise


def _profiled() -> bool:
    return torch.autograd.profiler._is_profiler_enabled


@contextmanager
def _workers(board: "_Board", threads: int) -> Iterator[None]:
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


def _work(board: "_Board", worker: int, threads: int, caller: CallerState) -> None:
    """Take this worker's tasks in its order until they end, fail or are stopped."""
    try:
        torch.set_num_threads(threads)
        with caller.training():
            for task in board.schedule.order(worker, board.numbers()):
                board.wait_for(task, worker)
                board.perform(task, worker)
        board.rest()
    except _Stopped:
        pass
    except BaseException as error:  # whatever it is, the caller raises it
        board.fail(error)


class _Stopped(Exception):
    """Another worker failed, or the caller was interrupted."""


class _Board:
    """What workers share: payloads on their way, tasks done, the first failure."""

    def __init__(self, schedule: Schedule, stages: Sequence[Stage]) -> None:
        if len(stages) != schedule.stages:
            raise ValueError(f"{schedule.name} has {schedule.stages} stages, got {len(stages)}")
        validate(schedule)
        self.schedule, self.stages = schedule, stages
        self.lock = threading.Lock()
        self.waiters: list[tuple[Callable[[], bool], threading.Condition]] = []
        self.mail: dict[Task, Any] = {}
        self.fed, self.closed = 0, False
        self.started = 0  # batches that stage 0 has run forward
        self.finished_below = 0  # all tasks of the batches below this one are done
        self.done: dict[int, set[Task]] = {}  # of the batches from there on
        self.idle = 0
        self.failure: BaseException | None = None
        self.stopped = False
        self.intervals: list[Interval] = []

    def missing(self, task: Task) -> list[Task]:
        """Return what `task` still waits for."""
        return [other for other in self.schedule.waits(task) if not self._is_done(other)]

    def perform(self, task: Task, worker: int) -> None:
        """Run a task whose waits are met; hand over what it returns and post that it is done."""
        payload = self.mail.pop(task, None)
        start_s = time.perf_counter()
        output = run_task(self.stages, task, payload, f"worker {worker} of {self.schedule.name}")
        interval = Interval(f"worker {worker}", *task, start_s, time.perf_counter())
        with self.lock:
            self.intervals.append(interval)
            self._hand_over(task, output)
            self._post(task)
            self._wake()

    def wait_for(self, task: Task, worker: int) -> None:
        with self.lock:
            self._wait(lambda: not self.missing(task))
            self._check_stopped()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait on the caller's side; raises the first exception of a worker."""
        with self.lock:
            self._wait(condition)
            if self.failure is not None:
                raise self.failure

    def put(self, payload: Any, batch: int) -> None:
        with self.lock:
            self.mail[Task("forward", 0, batch)] = payload
            self.fed = batch + 1
            self._wake()

    def close(self) -> None:
        """No batch comes any more."""
        with self.lock:
            if not self.fed:
                raise ValueError("there are no batches: the loader is empty")
            self.closed = True
            self._wake()

    def numbers(self) -> Iterator[int]:
        """Yield the batch numbers as batches are fed; waits for the next one, or for the end."""
        batch = 0
        while True:
            with self.lock:
                self._wait(partial(self.knows, batch))
                self._check_stopped()
                if batch >= self.fed:
                    return
            yield batch
            batch += 1

    def knows(self, batch: int) -> bool:
        """Whether a batch has been fed or is known never to come."""
        return self.closed or batch < self.fed

    def rest(self) -> None:
        """A worker has done all of its tasks."""
        with self.lock:
            self.idle += 1
            self._wake()

    def fail(self, error: BaseException) -> None:
        with self.lock:
            self.failure = self.failure or error
            self.stopped = True
            self._wake()

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            self._wake()

    def timeline(self) -> Timeline:
        names = (f"worker {worker}" for worker in range(self.schedule.workers))
        return Timeline.of(self.intervals, names)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait, holding the lock, until `condition` or a stop."""
        if self.stopped or condition():
            return
        waiter = condition, threading.Condition(self.lock)
        self.waiters.append(waiter)
        try:
            waiter[1].wait_for(lambda: self.stopped or condition())
        finally:
            self.waiters.remove(waiter)

    def _wake(self) -> None:
        """Wake whose condition holds, and nobody else: who wakes for nothing takes a core."""
        for condition, waiter in self.waiters:
            if self.stopped or condition():
                waiter.notify()

    def _is_done(self, task: Task) -> bool:
        if self.closed and task.batch >= self.fed:
            return True  # there is no such batch
        return task.batch < self.finished_below or task in self.done.get(task.batch, ())

    def _hand_over(self, task: Task, output: Any) -> None:
        if output is not None:
            for taker in self.schedule.takers(task):
                self.mail[taker] = output

    def _post(self, task: Task) -> None:
        """Note that `task` is done; a finished batch is forgotten, so memory does not grow."""
        self.done.setdefault(task.batch, set()).add(task)
        if task.kind == "forward" and task.stage == 0:
            self.started = task.batch + 1
        while len(self.done.get(self.finished_below, ())) == self.schedule.tasks_per_batch:
            del self.done[self.finished_below]
            self.finished_below += 1

    def _check_stopped(self) -> None:
        if self.stopped:
            raise _Stopped


class _PullFeed:
    """Batch numbers for the single executor: the loader is asked when a worker asks."""

    def __init__(self, board: _Board, batches: Iterable[Any]) -> None:
        self.board, self.batches = board, iter(batches)

    def numbers(self) -> Iterator[int]:
        batch = 0
        while self._has(batch):
            yield batch
            batch += 1

    def _has(self, batch: int) -> bool:
        while batch >= self.board.fed and not self.board.closed:
            try:
                self.board.put(next(self.batches), self.board.fed)
            except StopIteration:
                self.board.close()
        return batch < self.board.fed


@contextmanager
def operator_threads(threads: int) -> Iterator[None]:
    """Set the operator threads of the calling thread, and give it back its own at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
