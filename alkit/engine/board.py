"""What the workers of one process share: payloads on their way, tasks done, the first failure."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from alkit.engine.free import FreeLanes
from alkit.engine.stage import Stage, run_task
from alkit.engine.watch import Watch
from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Timeline
from alkit.schedule.validate import validate

__all__ = ["Board", "PullFeed", "Stopped"]


class Stopped(Exception):
    """Another worker failed, or the caller was interrupted."""


class Board:
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
        self.watch = Watch(stages)
        self.free: FreeLanes | None = None  # set where free workers share this board

    def missing(self, task: Task) -> list[Task]:
        """Return what `task` still waits for."""
        return [other for other in self.schedule.waits(task) if not self._is_done(other)]

    def perform(self, task: Task, worker: int) -> None:
        """Run a task whose waits are met; hand over what it returns and post that it is done."""
        payload = self.mail.pop(task, None)
        start = self.watch.now(task.stage)
        output = run_task(self.stages, task, payload, f"worker {worker} of {self.schedule.name}")
        end = self.watch.now(task.stage)
        with self.lock:
            self.watch.note(f"worker {worker}", task, start, end)
            self._hand_over(task, output)
            self._post(task)
            if self.free is None:
                self._wake()
            else:
                # others wake after this worker's choice
                self.free.note(task, end.host_s - start.host_s)

    def tasks(self, worker: int) -> Iterator[Task]:
        """Yield what a worker is to perform, as soon as it may start."""
        if self.free is not None:
            while (task := self._take(self.free)) is not None:
                yield task
            return
        for task in self.schedule.order(worker, self.numbers()):
            with self.lock:
                self._wait(partial(self._may_start, task))
                self._check_stopped()
            yield task

    def _take(self, free: FreeLanes) -> Task | None:
        """Take the most urgent task of all lanes as soon as there is one; None when all have ended.

        This worker chooses before it wakes the others: who wakes for nothing takes a core.
        """
        with self.lock:
            task = free.take()
            self._wake()
            if task is None:
                self._wait(free.may_go_on)
                task = free.take()
            self._check_stopped()
            return task

    def _may_start(self, task: Task) -> bool:
        return not self.missing(task)

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
            if self.free is not None:
                self.free.fed()
            self._wake()

    def close(self) -> None:
        """No batch comes any more."""
        with self.lock:
            if not self.fed:
                raise ValueError("there are no batches: the loader is empty")
            self.closed = True
            if self.free is not None:
                self.free.fed()
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
        return Timeline.of(self.watch.intervals(), names, self.watch.clock)

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
            raise Stopped


class PullFeed:
    """Batch numbers for the single executor: the loader is asked when a worker asks."""

    def __init__(self, board: Board, batches: Iterable[Any]) -> None:
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
