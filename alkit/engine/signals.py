"""Messages without a payload: what a rank waits for at another rank beside data.

Along an edge of any other kind nothing is handed over. The rank that ends the earlier task sends
one number for every such edge; the other takes it when it comes to the later one:

    rank 1   ... update of stage 1, batch 3 ──┐
    rank 0                                    └──> forward of stage 0, batch 4 ...

Who sends and who takes what is read off the schedule, so both sides agree without asking.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.engine.heartbeat import waiting
from alkit.schedule.task import Place, Schedule, Task

FAR = 1 << 10  # a batch number with no ends near
AHEAD = 512  # words on their way that a sender does not wait for: many batches' worth


class _Edge(NamedTuple):
    """`later` may start when `earlier`, `lag` batches before it, has ended."""

    earlier: Place
    later: Place
    lag: int


class Signals:
    """The words that one rank sends and takes.

    Args:
        owner: the rank of each stage.
        rank: this one.
        first: what to add for the number of a rank in the whole group.
        first_stream: streams below it carry data.
    """

    def __init__(
        self,
        schedule: Schedule,
        owner: Sequence[int],
        rank: int,
        *,
        first: int = 0,
        first_stream: int = 0,
    ) -> None:
        self.schedule, self.owner, self.first = schedule, owner, first
        self.out: dict[Place, list[tuple[int, int]]] = {}  # peer, stream
        self.taken: dict[_Edge, int] = {}  # words so far
        self.streams: dict[_Edge, int] = {}
        self.pending: deque[tuple[dist.Work, Tensor]] = deque()
        for stream, edge in enumerate(_edges(schedule, owner), first_stream):
            sender, receiver = owner[edge.earlier[1]], owner[edge.later[1]]
            if sender == rank:
                self.out.setdefault(edge.earlier, []).append((first + receiver, stream))
            if receiver == rank:
                self.taken[edge], self.streams[edge] = 0, stream

    def send(self, task: Task) -> None:
        """Tell who waits for it that `task` has ended."""
        for peer, stream in self.out.get(task.place, ()):
            word = torch.tensor([task.batch])
            work = dist.isend(word, peer, tag=_tag(stream, task.batch))
            assert work is not None  # only a process outside the group sends nothing
            self.pending.append((work, word))
        self._settle(AHEAD)

    def wait(self, task: Task, batches: int | None) -> None:
        """Wait for all words that `task` needs.

        Args:
            batches: how many there are, once this rank knows: batches past them never end.
        """
        for edge in self.taken:
            if edge.later == task.place:
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
        return sum(task.place == edge.earlier for task in tasks)

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


def _edges(schedule: Schedule, owner: Sequence[int]) -> list[_Edge]:
    """Return the edges between ranks along which nothing is handed over, of any batch."""
    found = set()
    for kind, stage, micro in schedule.places:
        task = Task(kind, stage, FAR, micro)
        for why, other in schedule.edges(task):
            if why != "data" and owner[other.stage] != owner[stage]:
                found.add(_Edge(other.place, task.place, FAR - other.batch))
    return sorted(found)


def _tag(stream: int, batch: int) -> int:
    return stream << 20 | batch % (1 << 20)
