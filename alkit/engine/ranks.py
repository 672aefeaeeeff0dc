r"""Execute a schedule over processes: every rank runs one worker's lane of it.

    rank 0   F0 B0 U0 F0 B0 U0 ...            every rank goes through the same batches itself;
                 \        \                   what a stage makes for the next one travels
    rank 1        F1 B1 U1  F1 B1 U1 ...

A rank says that a task has ended to every rank that waits for it, along with what it made if that
is taken there. So the one `Run` knows of others' tasks as if they had run here. A message comes in
the order of its sender's lane, which the receiver knows: it asks for all of a batch as it opens it.
"""

import faulthandler
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from alkit.engine.launch import PATIENCE
from alkit.engine.messages import END, Receiver, Sender, broadcast, fingerprint
from alkit.engine.run import Run
from alkit.engine.stage import Stage
from alkit.schedule.task import Place, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline

FAR = 1 << 10  # a batch number with no ends near


def owners(schedule: Schedule) -> list[int]:
    """Return the worker of each stage.

    Raises:
        ValueError: a stage's tasks are shared by several workers, as al_m and al_fm do, or belong
            to any free worker.
    """
    found: dict[int, set[int]] = {}
    for kind, stage, micro in schedule.places:
        owner = schedule.owner(Task(kind, stage, 0, micro))
        found.setdefault(stage, set()).update(() if owner is None else (owner,))
    if any(len(workers) != 1 for workers in found.values()):
        raise ValueError(
            f"{schedule.name} shares a stage among workers, which ranks can't: take al_pipeline"
            " with cuts, or threads"
        )
    return [found[stage].pop() for stage in range(schedule.stages)]


def run_ranks(
    schedule: Schedule,
    stages: Sequence[Stage],
    batches: Iterable[Any],
    *,
    threads: int = 1,
    pipelines: int = 1,
    spare: bool = False,
) -> Timeline:
    """Run this rank's worker; call it on every rank of the default group, with the same batches.

    Args:
        stages: all of them; this rank runs its own.
        batches: what stage 0's forward takes, a pair (x, y).
        pipelines: equal ones side by side, of neighbouring ranks; each may have its own batches.
        spare: there may be more ranks than workers; the last ones have nothing to do.
    Returns:
        This rank's timeline; time 0 is a barrier.
    Raises:
        ValueError: another number of workers than ranks, or ranks with different batches.
    """
    used = schedule.workers * pipelines
    if dist.get_world_size() < used or (dist.get_world_size() > used and not spare):
        raise ValueError(
            f"{pipelines} x {schedule.name} with {schedule.workers} workers and"
            f" {dist.get_world_size()} ranks: give as many"
        )
    dist.barrier()  # before any stream is open: a barrier is not to meet a neighbour's message
    if dist.get_rank() >= used:
        return Timeline((), (f"worker {dist.get_rank()}",))
    run, start_s = _RankRun(schedule, stages), time.perf_counter()
    run.here(run.checked(batches), threads, run.listen)
    run.close()
    shifted = (
        i._replace(start_s=i.start_s - start_s, end_s=i.end_s - start_s)
        for i in run.watch.intervals()
    )
    return Timeline(tuple(shifted), (f"worker {run.rank}",), run.watch.clock)


@contextmanager
def patience() -> Iterator[None]:
    """End this process, saying where all threads are, if the block takes longer than a rank may."""
    seconds = float(os.environ.get(PATIENCE, "0"))
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        if seconds:
            faulthandler.cancel_dump_traceback_later()


def merged(timeline: Timeline) -> Timeline:
    """Return the timelines of all ranks as one, on every rank."""
    own = [tuple(each)[1:] for each in timeline.intervals]
    every = [broadcast(own, rank) for rank in range(dist.get_world_size())]
    names = [f"worker {rank}" for rank in range(len(every))]
    rows = (Interval(names[rank], *row) for rank, found in enumerate(every) for row in found)
    return Timeline.of(rows, names, timeline.clock)


class _RankRun(Run):
    """A run of one lane, which hears of the others."""

    def __init__(self, schedule: Schedule, stages: Sequence[Stage]) -> None:
        # from here on ranks are those of this pipeline; only messages know of others
        self.rank, self.owner = dist.get_rank() % schedule.workers, owners(schedule)
        self.first = dist.get_rank() - self.rank
        heard = _told(schedule, self.owner, self.rank)
        super().__init__(
            schedule, stages, [self.rank], [p for told in heard.values() for p in told]
        )
        self.numbers_of = {place: at for at, place in enumerate(schedule.places)}
        self.marks: dict[int, int] = {}  # of the labels of each batch, here or there
        lag = schedule.workers
        self.incoming = {
            peer: _Incoming(self, peer, told, Receiver(self.first + peer, lag=lag))
            for peer, told in heard.items()
        }
        self.outgoing: dict[int, tuple[dict[Place, bool], Sender]] = {}
        for peer in range(schedule.workers):
            told = _told(schedule, self.owner, peer).get(self.rank)
            if told:
                room = sum(self.proof.queues.values()) + len(told)
                self.outgoing[peer] = told, Sender(self.first + peer, lag=lag, room=room)

    def checked(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass batches on; what their labels are is compared with what the others say."""
        for number, payload in enumerate(batches):
            self.compare(number, fingerprint(payload[1]))
            yield payload

    def feed(self) -> None:
        """Take the next batch, and ask the others for all that they will say of it."""
        super().feed()
        for incoming in self.incoming.values():
            incoming.ask()

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; one that takes too long ends this process, saying where all threads are."""
        with patience():
            return super().work(task, payload, worker)

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task of this rank has ended to all ranks that wait for it."""
        for told, sender in self.outgoing.values():
            if task.place in told:
                place, mark = self.numbers_of[task.place], self.marks[task.batch]
                sender.send(place, task.batch, mark, output if told[task.place] else None)

    def listen(self, task: Task) -> None:
        """Hear the ranks out until all that a task waits for has ended."""
        while (other := self.missing(task)) is not None:
            peer = self.owner[other.stage]
            told = self.incoming[peer].take()
            if told is None:
                raise self.unequal(peer)
            self.hear(*told)

    def close(self) -> None:
        """Hear all others out, so that nobody hangs up on one that still sends."""
        for _, sender in self.outgoing.values():
            sender.send(END, self.fed, 0, None)
        for incoming in self.incoming.values():
            while incoming.take() is not None:
                continue
        for _, sender in self.outgoing.values():
            sender.settle()

    def compare(self, batch: int, mark: int) -> None:
        """Refuse labels that differ from another rank's."""
        for old in [each for each in self.marks if each < self.finished_below]:
            del self.marks[old]
        if self.marks.setdefault(batch, mark) != mark:
            raise ValueError(
                f"batch {batch} has other labels on rank {dist.get_rank()} than on another rank:"
                " give every rank the same batches, in the same order"
            )

    def unequal(self, peer: int) -> ValueError:
        """Say that another rank has more batches, or fewer."""
        return ValueError(
            f"ranks {self.first + peer} and {dist.get_rank()} have different numbers of batches:"
            " give every rank the same"
        )


class _Incoming:
    """What one rank says to this one, in the order of its lane.

    Args:
        told: the places of its tasks that it speaks of.
    """

    def __init__(
        self, run: _RankRun, peer: int, told: Collection[Place], receiver: Receiver
    ) -> None:
        self.run, self.peer, self.told, self.receiver = run, peer, told, receiver
        self.order = run.schedule.order(peer, run.numbers())
        self.next = next(self.order, None)
        self.all_asked = False

    def ask(self) -> None:
        """Ask for all that it will say of the batches that are open here."""
        numbers = self.run.numbers_of
        while not self.all_asked:
            task = self.next
            if task is None:
                self.all_asked = self.receiver.ask(END, 0)
            elif self.run.never(task):
                self.next = next(self.order, None)
            elif task.batch >= self.run.fed:
                return
            elif task.place in self.told and not self.receiver.ask(numbers[task.place], task.batch):
                return
            else:
                self.next = next(self.order, None)

    def take(self) -> tuple[Task, Any] | None:
        """Wait for the next task that has ended there, and what it made; None at the end."""
        self.ask()
        while not self.receiver.asked:  # it will speak of a batch that isn't open here
            self.run.feed()
        place, batch, mark, payload = self.receiver.take()
        if self.run.closed and batch > self.run.fed - (place != END):
            raise self.run.unequal(self.peer)
        if place == END:
            if batch < self.run.fed:
                raise self.run.unequal(self.peer)
            return None
        self.run.compare(batch, mark)
        kind, stage, micro = self.run.schedule.places[place]
        return Task(kind, stage, batch, micro), payload


def _told(schedule: Schedule, owner: Sequence[int], rank: int) -> dict[int, dict[Place, bool]]:
    """Return which places a rank is told of, by who tells, and whether it takes what they make."""
    found: dict[int, dict[Place, bool]] = {}
    for kind, stage, micro in schedule.places:
        for edge in schedule.edges(Task(kind, stage, FAR, micro)) if owner[stage] == rank else ():
            teller, place = owner[edge.task.stage], edge.task.place
            if teller != rank:
                told = found.setdefault(teller, {})
                told[place] = told.get(place, False) or edge.kind == "data"
    return found
