"""Execute a schedule: on one thread (the oracle of all others), on threads, or on ranks.

The output of a task, if it isn't None, goes along the data edges of the schedule.

    lanes     F B U F B U ...     each keeps its order; its next task is ready, waits for another
              F B U F B U ...     task or for a batch, or is being run
    worker    takes a ready task of its own lane, or, where workers are free or there is one thread,
              the most urgent of all (`alkit.schedule.clock`)
    rank      a process with the lane of a worker, which hears of the tasks elsewhere that its own
              wait for (`alkit.engine.ranks`)

A lane is looked at when the task that it waited for has ended, and not before. A worker that fails
stops the run; the others end after the task they are in.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, takewhile
from typing import Any

import torch

from alkit.engine.caller import CallerState
from alkit.engine.stage import Stage
from alkit.schedule.clock import FEED_AHEAD, WorkLeft
from alkit.schedule.task import Place, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.schedule.validate import validate


def run_single(
    schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run all tasks on the calling thread; of lanes that could go on, the first one does."""
    run = Run(schedule, stages)
    run.here(batches, threads, urgent=False)
    return run.timeline()


def run_threads(
    schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any], *, threads: int = 1
) -> Timeline:
    """Run the tasks of every worker on a thread of its own; of a single one on the calling thread.

    Args:
        batches: input of the forward of stage 0; pulled by the calling thread, a little ahead.
        threads: operator threads of each worker.
    Raises:
        Exception: the first one of any worker, with its traceback and a note that names the task.
    """
    if schedule.workers == 1:
        return run_single(schedule, stages, batches, threads=threads)
    run, caller = Run(schedule, stages), CallerState.here()
    with ThreadPoolExecutor(schedule.workers, "alkit-worker") as crew, operator_threads(threads):
        try:
            for worker in range(schedule.workers):
                crew.submit(_work, run, worker, threads, caller)
            for batch, payload in enumerate(batches):
                run.put(batch, payload)
                run.wait_until(lambda: run.started > run.fed - FEED_AHEAD)
            run.put(None, None)
            run.wait_until(lambda: run.ended(range(schedule.lanes)))
        finally:
            run.stop()
    return run.timeline()


def _work(run: "Run", worker: int, threads: int, caller: CallerState) -> None:
    """Run the tasks of this worker until they end, fail or are stopped."""
    try:
        torch.set_num_threads(threads)
        with caller.training():
            while (task := run.take(worker)) is not None:
                run.perform(task, worker)
    except BaseException as error:  # of any kind: the caller raises it
        run.stop(error)


class Run:
    """State that all workers of a run share, under one lock: lanes, payloads, tasks done, failure.

    Args:
        own: the lanes that run here; default all.
        heard: places of tasks elsewhere that these lanes wait for; `hear` says when one has ended.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[Stage],
        own: Collection[int] | None = None,
        heard: Collection[Place] = (),
    ) -> None:
        if len(stages) != schedule.stages:
            raise ValueError(f"{schedule.name} has {schedule.stages} stages, got {len(stages)}")
        self.proof = validate(schedule)
        self.schedule, self.stages = schedule, stages
        self.own = range(schedule.lanes) if own is None else own
        places = [p for p in schedule.places if schedule.lane(Task(*p[:2], 0, p[2])) in self.own]
        self.intervals: list[Interval] = []
        self.stream: Iterator[tuple[int, Any]] = iter(())
        self.fed, self.closed = 0, False
        self.started = 0  # batches that stage 0 has run forward
        self.finished_below = 0  # all tasks of the batches below this one are done
        self.done: dict[int, set[Task]] = {}  # of the batches from there on
        self.counted = len(heard) + len(places)  # of these, in a batch
        self.mail: dict[Task, Any] = {}
        self.stopped = False
        self.failure: BaseException | None = None
        self.work_left = WorkLeft(schedule)
        self.orders = {lane: self._order(lane) for lane in self.own}
        self.next = {lane: next(order, None) for lane, order in self.orders.items()}
        self.ready: list[int] = []
        self.waiting: dict[Task, list[int]] = {}  # by the first task that a lane's next one misses
        self.unfed = list(self.own)  # their next task is of a batch to come
        self.lock = threading.Lock()
        self.caller = threading.Condition(self.lock)
        one = threading.Condition(self.lock)  # a worker that wakes for nothing takes a core
        self.bells = {k: one if schedule.free else threading.Condition(self.lock) for k in self.own}

    def here(self, batches: Iterable[Any], threads: int, *, urgent: bool = True) -> None:
        """Run the lanes on the calling thread; where all of them wait, see `listen`."""
        self.stream = enumerate(batches)
        with operator_threads(threads), CallerState.here().training():
            while not self.ended(self.own):
                while self.unfed and not self.closed:
                    self.feed()
                task = self.pick(self.own, urgent=urgent)
                if task is not None:
                    self.perform(task, 0 if self.schedule.free else self.schedule.lane(task))
                elif not self.ended(self.own):
                    self.listen(next(task for task in self.next.values() if task is not None))

    def feed(self) -> None:
        """Take the next batch from the stream."""
        self.put(*next(self.stream, (None, None)))

    def put(self, batch: int | None, payload: Any) -> None:
        """Feed a batch; without a number none comes any more."""
        with self.lock:
            if batch is None and not self.fed:
                raise ValueError("there are no batches: the loader is empty")
            if batch is None:
                self.closed = True
            else:
                self._mail(Task("forward", 0, batch), payload)
                self.fed = batch + 1
            never = [task for task in self.waiting if self.never(task)]
            unfed, self.unfed = self.unfed, []
            for lane in [*unfed, *(lane for task in never for lane in self.waiting.pop(task))]:
                self._look(lane)

    def take(self, worker: int) -> Task | None:
        """Wait for the next task of a worker; None if none will come."""
        own = range(self.schedule.lanes) if self.schedule.free else range(worker, worker + 1)
        with self.lock:
            while not self.stopped and not self.ended(own):
                if (task := self.pick(own)) is not None:
                    return task
                self.bells[own[0]].wait()
            self.bells[own[0]].notify_all()
            self.caller.notify()
            return None

    def pick(self, own: Collection[int], *, urgent: bool = True) -> Task | None:
        """Take the most urgent task of these lanes that may start, or of the first such lane."""
        ready = sorted(lane for lane in self.ready if lane in own)
        if not ready:
            return None
        lane = max(ready, key=self._urgency) if urgent else ready[0]
        self.ready.remove(lane)
        return self.next[lane]

    def perform(self, task: Task, worker: int) -> None:
        """Run a task, and hand over its output."""
        payload = self.mail.pop(task, None)
        start_s = time.perf_counter()
        output = self.work(task, payload, worker)
        end_s = time.perf_counter()
        self.tell(task, output)
        with self.lock:
            self.intervals.append(Interval(f"worker {worker}", *task, start_s, end_s))
            lane = self.schedule.lane(task)
            self.work_left.note(lane, task, end_s - start_s)
            self.next[lane] = next(self.orders[lane], None)
            self._post(task, output)
            self._look(lane)

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; return its output."""
        run = getattr(self.stages[task.stage], task.kind)
        try:
            return run(payload, task.batch, task.micro)
        except BaseException as error:
            error.add_note(f"alkit: in {task} (worker {worker} of {self.schedule.name})")
            raise

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task has ended, where another rank waits for it."""

    def listen(self, task: Task) -> None:
        """Wait until other ranks have run the tasks that a task waits for; here there are none."""
        raise RuntimeError(f"{self.schedule.name} deadlocks at {task}")

    def hear(self, task: Task, output: Any) -> None:
        """Note that another rank has run a task, with its output."""
        with self.lock:
            self._post(task, output)

    def ended(self, lanes: Iterable[int]) -> bool:
        """Whether no task of these lanes will come."""
        return all(self.next[lane] is None for lane in lanes)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait on the caller's side; raises the first exception of a worker."""
        with self.lock:
            self.caller.wait_for(lambda: self.stopped or condition())
            if self.failure is not None:
                raise self.failure

    def stop(self, failure: BaseException | None = None) -> None:
        """Let all workers end after the task they are in."""
        with self.lock:
            self.failure, self.stopped = self.failure or failure, True
            for bell in (*self.bells.values(), self.caller):
                bell.notify_all()

    def timeline(self) -> Timeline:
        """Return when every task ran."""
        names = (f"worker {worker}" for worker in range(self.schedule.workers))
        return Timeline.of(self.intervals, names)

    def missing(self, task: Task) -> Task | None:
        """Return the first task that `task` still waits for."""
        for _, other in self.schedule.edges(task):
            done = other.batch < self.finished_below or self.never(other)
            if not done and other not in self.done.get(other.batch, ()):
                return other
        return None

    def never(self, task: Task) -> bool:
        """Whether a task is of a batch that will not come."""
        return self.closed and task.batch >= self.fed

    def _mail(self, task: Task, payload: Any) -> None:
        if self.schedule.lane(task) in self.own:
            self.mail[task] = payload

    def _look(self, lane: int) -> None:
        """See whether the next task of a lane may start, or which task it waits for."""
        while (task := self.next[lane]) is not None and self.never(task):
            self.next[lane] = next(self.orders[lane], None)
        if task is None:
            self.bells[lane].notify_all()
        elif task.batch >= self.fed:
            self.unfed.append(lane)
        elif (other := self.missing(task)) is not None:
            self.waiting.setdefault(other, []).append(lane)
        else:
            self.ready.append(lane)
            self.bells[lane].notify()

    def _post(self, task: Task, output: Any) -> None:
        """Note that a task is done, and see which lanes go on; a finished batch is forgotten."""
        for taker in self.schedule.takers(task) if output is not None else ():
            self._mail(taker, output)
        self.done.setdefault(task.batch, set()).add(task)
        if task.kind == "forward" and task.stage == 0:
            self.started = task.batch + 1
            self.caller.notify()
        while len(self.done.get(self.finished_below, ())) == self.counted:
            del self.done[self.finished_below]
            self.finished_below += 1
        for lane in self.waiting.pop(task, ()):
            self._look(lane)

    def _order(self, lane: int) -> Iterator[Task]:
        """Return the tasks of a lane; if it has none, whatever comes, it is not asked for ever."""
        some = next(self.schedule.order(lane, range(self.schedule.stages + 1)), None)
        # known to come or not: a lane with a task of an earlier batch does not wait for the loader
        numbers = takewhile(lambda batch: not self.closed or batch < self.fed, count())
        return self.schedule.order(lane, numbers) if some else iter(())

    def _urgency(self, lane: int) -> tuple[bool, float]:
        task = self.next[lane]
        assert task is not None  # it may start
        return self.work_left.urgency(lane, task, self.fed)


@contextmanager
def operator_threads(threads: int) -> Iterator[None]:
    """Set the operator threads of the calling thread, and give it back its own at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
