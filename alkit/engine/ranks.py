r"""Execute a schedule over processes: every rank runs one worker's tasks, in that worker's order.

    rank 0   F0 B0 U0 F0 B0 U0 ...            every rank goes through the same batches itself;
                 \        \                   what a stage makes for the next one travels
    rank 1        F1 B1 U1  F1 B1 U1 ...

What a task waits for is either its own rank's, and then it has run before, or another's: what comes
along a data edge comes through an inbox, and all else as a message without a payload.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.data import tree
from alkit.engine.caller import CallerState
from alkit.engine.heartbeat import beat, waiting
from alkit.engine.local import operator_threads
from alkit.engine.messages import Inbox, Outbox, broadcast, fingerprint
from alkit.engine.signals import Signals
from alkit.engine.stage import Stage, run_task
from alkit.engine.watch import Watch
from alkit.schedule.task import Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.schedule.validate import validate

Stream = tuple[str, int, str, int]  # kind and stage of a task, and of what takes its output


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
    run, start_s = _Rank(schedule, stages, batches), time.perf_counter()
    with operator_threads(threads), CallerState.here().training():
        for task in schedule.order(run.rank, run.numbers()):
            run.receive(task)
            run.perform(task)
            run.forget(task.batch)
        run.close()
    shifted = (
        i._replace(start_s=i.start_s - start_s, end_s=i.end_s - start_s)
        for i in run.watch.intervals()
    )
    return Timeline(tuple(shifted), (f"worker {run.rank}",), run.watch.clock)


def merged(timeline: Timeline) -> Timeline:
    """Return the timelines of all ranks as one, on every rank."""
    intervals: list[Interval] = []
    kinds = sorted({i.kind for i in timeline.intervals})
    own = {
        "kinds": kinds,
        "numbers": torch.tensor(
            [[kinds.index(i.kind), i.stage, i.batch, i.micro] for i in timeline.intervals]
        ),
        "times": torch.tensor(
            [[i.start_s, i.end_s] for i in timeline.intervals], dtype=torch.float64
        ),
    }
    ranks = range(dist.get_world_size())
    for rank in ranks:
        one = broadcast(own, rank)
        rows = zip(one["numbers"].tolist(), one["times"].tolist(), strict=True)
        intervals += (
            Interval(f"worker {rank}", one["kinds"][kind], *place, *times)
            for (kind, *place), times in rows
        )
    return Timeline.of(intervals, [f"worker {rank}" for rank in ranks], timeline.clock)


class _Rank:
    """One rank's side of a run."""

    def __init__(self, schedule: Schedule, stages: Sequence[Stage], batches: Iterable[Any]) -> None:
        self.queues = validate(schedule).queues
        self.schedule, self.stages = schedule, stages
        # from here on ranks are those of this pipeline; only streams know of others
        self.rank, self.owner = dist.get_rank() % schedule.workers, owners(schedule)
        self.first = dist.get_rank() - self.rank
        self.loader = iter(batches)
        self.contexts: dict[int, tuple[list[Tensor], int]] = {}  # what every rank knows of a batch
        self.tasks_per_batch = len(schedule.one_batch(self.rank))
        self.left: dict[int, int] = {}  # tasks of a batch that this rank has still to run
        self.mail: dict[Task, Any] = {}
        # the others' may be elsewhere, and this one runs none of their tasks
        own = [s if self.owner[at] == self.rank else None for at, s in enumerate(stages)]
        self.watch = Watch(own)
        self.inboxes: dict[Stream, Inbox] = {}
        self.outboxes: dict[Stream, Outbox] = {}
        streams = sorted(q for q in self.queues if self.owner[q[1]] != self.owner[q[3]])
        self.signals = Signals(
            schedule, self.owner, self.rank, first=self.first, first_stream=len(streams)
        )
        self.batches: int | None = None  # how many there are, once the loader has ended
        self._connect(streams)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of this rank's batches, as its loader gives them."""
        for number in count():
            with waiting("its loader"):  # which may take its time
                payload = next(self.loader, None)
            if payload is None:
                self.batches = number
                return
            self.contexts[number] = list(tree.tensors(payload)), fingerprint(payload[1])
            self.left[number] = self.tasks_per_batch
            if self.owner[0] == self.rank:
                self.mail[Task("forward", 0, number)] = payload
            yield number

    def receive(self, task: Task) -> None:
        """Wait for what the neighbours owe this task."""
        for kind, other in self.schedule.edges(task):
            if kind != "data" or self.owner[other.stage] == self.rank:
                continue
            inbox = self.inboxes[*other[:2], *task[:2]]
            with waiting(f"{other} of rank {inbox.peer}"):
                message = inbox.take()
            if message is None or (message.batch, message.micro) != (task.batch, task.micro):
                raise _unequal(inbox.peer)
            self.mail[task] = message.payload
        self.signals.wait(task, self.batches)

    def perform(self, task: Task) -> None:
        """Run a task and hand on what it makes."""
        payload = self.mail.pop(task, None)
        beat(str(task))
        start = self.watch.now(task.stage)
        output = run_task(self.stages, task, payload, f"rank {self.rank} of {self.schedule.name}")
        self.watch.note(f"worker {self.rank}", task, start, self.watch.now(task.stage))
        self.signals.send(task)
        for taker in self.schedule.takers(task) if output is not None else ():
            if self.owner[taker.stage] == self.rank:
                self.mail[taker] = output
                continue
            outbox = self.outboxes[*task[:2], *taker[:2]]
            with waiting(f"room at rank {outbox.peer}"):
                outbox.send(task.batch, task.micro, output, *self.contexts[task.batch])

    def close(self) -> None:
        """End the streams; a neighbour that has more batches is told so."""
        with waiting("the other ranks to end"):
            for outbox in self.outboxes.values():
                outbox.close()
            for inbox in self.inboxes.values():
                while inbox.take() is not None:
                    if not self.left:  # a schedule without a drain leaves some
                        raise _unequal(inbox.peer)
        assert self.batches is not None  # the loader has ended
        self.signals.close(self.batches)

    def _connect(self, streams: Sequence[Stream]) -> None:
        """Open this rank's ends of the streams, which hold what the schedule may have waiting."""
        for number, stream in enumerate(streams):
            sender, receiver = self.owner[stream[1]], self.owner[stream[3]]
            if sender == self.rank:
                peer = self.first + receiver
                self.outboxes[stream] = Outbox(peer, self.queues[stream], number)
            if receiver == self.rank:
                peer = self.first + sender
                known = self._known(peer)
                self.inboxes[stream] = Inbox(peer, known, self.queues[stream], number)

    def _known(self, peer: int) -> Callable[[int], tuple[list[Tensor], int]]:
        def known(batch: int) -> tuple[list[Tensor], int]:
            if batch not in self.contexts:
                raise _unequal(peer)
            return self.contexts[batch]

        return known

    def forget(self, batch: int) -> None:
        """Drop what is kept of a batch once its last task has run here."""
        self.left[batch] -= 1
        if not self.left[batch]:
            del self.left[batch], self.contexts[batch]


def _unequal(peer: int) -> ValueError:
    return ValueError(
        f"ranks {peer} and {dist.get_rank()} have different numbers of batches: give every rank"
        " the same"
    )
