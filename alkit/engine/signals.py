"""What a rank waits for at another rank beside its messages: a word that a task has ended.

Barriers are edges between tasks of different ranks along which nothing is handed over. The rank
that ends the earlier task sends one number for every such edge; the other takes it when it comes to
the later one:

    rank 1   ... update of stage 1, batch 3 ──┐
    rank 0                                    └──> forward of stage 0, batch 4 ...

Who sends and who takes what is read off the schedule, so both sides agree without asking.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.engine.heartbeat import waiting
from alkit.schedule.task import HAND_OVER, Schedule, Task

__all__ = ["Signals", "hands_over", "is_room"]

FAR = 1 << 10  # a batch number with no ends near
FIRST_STREAM = 8  # streams below are messages', see engine_ranks
AHEAD = 512  # words on their way that a sender does not wait for: many batches' worth


class _Edge(NamedTuple):
    """`later` may start when `earlier`, `lag` batches before it, has ended."""

    earlier: tuple[str, int, int]  # kind, stage, micro
    later: tuple[str, int, int]
    lag: int


class Signals:
    """The words that one rank sends and takes.

    Args:
        owner: the rank of each stage.
        rank: this one.
        first: what to add for the number of a rank in the whole group.
    """

    def __init__(self, schedule: Schedule, owner: Sequence[int], rank: int, first: int = 0) -> None:
        self.schedule, self.owner, self.first = schedule, owner, first
        self.out: dict[tuple[str, int, int], list[tuple[int, int]]] = {}  # peer, stream
        self.taken: dict[_Edge, int] = {}  # words so far
        self.streams: dict[_Edge, int] = {}
        self.pending: deque[tuple[dist.Work, Tensor]] = deque()
        for stream, edge in enumerate(_edges(schedule, owner), FIRST_STREAM):
            sender, receiver = owner[edge.earlier[1]], owner[edge.later[1]]
            if sender == rank:
                self.out.setdefault(edge.earlier, []).append((first + receiver, stream))
            if receiver == rank:
                self.taken[edge], self.streams[edge] = 0, stream

    def send(self, task: Task) -> None:
        """Tell who waits for it that `task` has ended."""
        for peer, stream in self.out.get(_place(task), ()):
            word = torch.tensor([task.batch])
            self.pending.append((dist.isend(word, peer, tag=_tag(stream, task.batch)), word))
        self._settle(AHEAD)

    def wait(self, task: Task, batches: int | None) -> None:
        """Wait for all words that `task` needs.

        Args:
            batches: how many there are, once this rank knows: batches past them never end.
        """
        for edge in self.taken:
            if edge.later == _place(task):
                wanted = task.batch - edge.lag
                if batches is None or wanted < batches:
                    self._take(edge, wanted + 1)

    def close(self, batches: int) -> None:
        """Take what is left, and wait until all that was sent has been taken."""
        for edge in self.taken:
            self._take(edge, self._sent(edge, batches))
        self._settle(0)

    def _sent(self, edge: _Edge, batches: int) -> int:
        """Return how many words the sender has for an edge: without a drain, not one a batch."""
        tasks = self.schedule.order(self.owner[edge.earlier[1]], range(batches))
        return sum(_place(task) == edge.earlier for task in tasks)

    def _settle(self, room: int) -> None:
        while len(self.pending) > room:
            self.pending.popleft()[0].wait()

    def _take(self, edge: _Edge, count: int) -> None:
        peer = self.first + self.owner[edge.earlier[1]]
        while self.taken[edge] < count:
            batch, word = self.taken[edge], torch.empty(1, dtype=torch.int64)
            with waiting(f"{edge.earlier[0]} of rank {peer}"):
                dist.recv(word, peer, tag=_tag(self.streams[edge], batch))
            self.taken[edge] += 1


def hands_over(other: Task, task: Task) -> bool:
    """Whether `task` takes what `other` makes."""
    return other == task._replace(stage=task.stage - HAND_OVER.get(task.kind, 0)) and other != task


def is_room(other: Task, task: Task) -> bool:
    """Whether `other` only says that the next stage has taken an earlier batch."""
    return (
        task.kind == other.kind == "forward"
        and other.stage == task.stage + 1
        and other.batch < task.batch
    )


def _edges(schedule: Schedule, owner: Sequence[int]) -> list[_Edge]:
    """Return the edges between ranks along which nothing is handed over, the same for every batch.

    Room is no such edge: a stream that is full says it.
    """
    found = set()
    for task in itertools.chain.from_iterable(map(schedule.one_batch, range(schedule.workers))):
        task = task._replace(batch=FAR)
        for other in schedule.waits(task):
            if owner[other.stage] == owner[task.stage]:
                continue
            if not (hands_over(other, task) or is_room(other, task)):
                found.add(_Edge(_place(other), _place(task), FAR - other.batch))
    return sorted(found)


def _place(task: Task) -> tuple[str, int, int]:
    return task.kind, task.stage, task.micro


def _tag(stream: int, batch: int) -> int:
    return stream << 24 | batch % (1 << 24)
