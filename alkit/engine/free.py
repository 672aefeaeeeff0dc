"""Free workers: who has nothing to do takes the most urgent task that may start.

    lanes, one a stage       F B U F B U ...        each keeps its order
    a worker that is free    of the lanes whose next task may start, the most urgent

See `alkit.schedule.urgency` for what is urgent. Everything here is called under the board's lock.
A lane is looked at when what it waited for has ended, and not before: looking at all of them for
every task cost twice as much.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from alkit.schedule.task import Task
from alkit.schedule.urgency import WorkLeft

if TYPE_CHECKING:
    from alkit.engine.board import Board

__all__ = ["FreeLanes"]


class FreeLanes:
    """The next task of every lane: ready, waiting for another task or a batch, or being run."""

    def __init__(self, board: "Board") -> None:
        self.board, schedule = board, board.schedule
        self.work_left = WorkLeft(schedule)
        self.orders = [schedule.order(lane, self._numbers()) for lane in range(schedule.lanes)]
        self.next = [next(order, None) for order in self.orders]
        self.ready: list[int] = []
        self.waiting: dict[Task, list[int]] = {}  # by the first task that a lane's next one misses
        self.unfed = list(range(schedule.lanes))  # their next task is of a batch to come

    def may_go_on(self) -> bool:
        """Whether a worker need not wait: there is a task for it, or no task will ever come."""
        return bool(self.ready) or all(task is None for task in self.next)

    def take(self) -> Task | None:
        """Hand out the most urgent task that may start; None if there is none."""
        if not self.ready:
            return None
        lane = max(self.ready, key=self._urgency)
        self.ready.remove(lane)
        return self.next[lane]

    def note(self, task: Task, seconds: float) -> None:
        """A worker has run `task`: its lane goes on, and so do those that waited for it."""
        lane = self.board.schedule.lane(task)
        self.work_left.note(lane, task, seconds)
        self.next[lane] = next(self.orders[lane], None)
        for moved in (lane, *self.waiting.pop(task, ())):
            self._look(moved)

    def fed(self) -> None:
        """There is one more batch, or none will come any more."""
        board = self.board
        never = [task for task in self.waiting if board.closed and task.batch >= board.fed]
        unfed, self.unfed = self.unfed, []
        for lane in itertools.chain(unfed, *map(self.waiting.pop, never)):
            self._look(lane)

    def _look(self, lane: int) -> None:
        """Say whether the lane's next task may start, or what it waits for."""
        board, task = self.board, self.next[lane]
        while task is not None and board.closed and task.batch >= board.fed:  # never comes
            task = self.next[lane] = next(self.orders[lane], None)
        if task is None:
            return
        if task.batch >= board.fed:
            self.unfed.append(lane)
        elif missing := board.missing(task):
            self.waiting.setdefault(missing[0], []).append(lane)
        else:
            self.ready.append(lane)

    def _numbers(self) -> Iterator[int]:
        """Yield batch numbers before it is known whether they come: no lane waits for the loader
        while it has a task of an earlier batch."""
        for batch in itertools.count():
            if self.board.closed and batch >= self.board.fed:
                return
            yield batch

    def _urgency(self, lane: int) -> tuple[bool, float]:
        task = self.next[lane]
        assert task is not None  # it may start
        return self.work_left.urgency(lane, task, self.board.fed)
