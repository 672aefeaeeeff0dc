r"""Execute a schedule over processes: every rank runs the lane of one worker.

    rank 0   F0 B0 U0 F0 B0 U0 ...            every rank goes through the same batches itself;
                 \        \                   outputs for the next stage travel
    rank 1        F1 B1 U1  F1 B1 U1 ...

A rank says that a task has ended to every rank that waits for it, with its output if that rank
takes it. It asks for all messages about a batch as it opens it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

from alkit.engine.launch import patience
from alkit.engine.messages import END, Group, Receiver, Sender, fingerprint
from alkit.engine.run import Run
from alkit.engine.stage import Stage
from alkit.schedule.task import Place, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline

FAR = 1 << 10  # a batch number with no ends near


def owners(schedule: Schedule) -> list[int]:
    """Return the worker of each stage."""
    found = {(s, schedule.lane(Task(kind, s, 0, micro))) for kind, s, micro in schedule.places}
    if schedule.free or len(found) > schedule.stages:
        said = f"{schedule.name} shares a stage among workers, which ranks can't"
        raise ValueError(f"{said}: take al_pipeline with cuts, or threads")
    return [worker for _, worker in sorted(found)]


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

    All return the timeline of all. Of one pipeline, all end with the parts of all stages.

    Args:
        batches: input of the forward of stage 0, a pair (x, y).
        pipelines: equal ones side by side, of neighbouring ranks; each may have its own batches.
        spare: there may be more ranks than workers; the last ones have nothing to do.
    """
    group, used = Group(), schedule.workers * pipelines
    if group.ranks < used or (group.ranks > used and not spare):
        raise ValueError(
            f"{pipelines} x {schedule.name} with {schedule.workers} workers and {group.ranks}"
            " ranks: give as many"
        )
    dist.barrier()  # before any stream is open: a barrier is not to meet a neighbour's message
    start_s, rows = time.perf_counter(), list[Any]()
    if group.rank < used:
        run = _RankRun(schedule, stages)
        run.here(batches, threads)
        run.close()
        rows = [(*i[1:5], i.start_s - start_s, i.end_s - start_s) for i in run.intervals]
    for stage, owner in zip(stages, owners(schedule), strict=True) if pipelines == 1 else ():
        for part in stage.parts:
            state = group.broadcast(part.state_dict() if group.rank == owner else None, owner)
            if group.rank != owner:
                part.load_state_dict(state)
    every = {f"worker {rank}": own for rank, own in enumerate(group.gather(rows))}
    found = (Interval(name, *row) for name, own in every.items() for row in own)
    return Timeline.of(found, every)


class _RankRun(Run):
    """A run of one lane, which hears of the others."""

    def __init__(self, schedule: Schedule, stages: Sequence[Stage]) -> None:
        # ranks of this pipeline; only messages know of others
        rank, owner = dist.get_rank() % schedule.workers, owners(schedule)
        first, lag = dist.get_rank() - rank, schedule.workers
        self.owner, self.places = owner, {place: n for n, place in enumerate(schedule.places)}
        self.due = _told(schedule, owner, rank)
        super().__init__(schedule, stages, [rank], [p for told in self.due.values() for p in told])
        self.receivers = {peer: Receiver(first + peer, lag=lag) for peer in self.due}
        self.outgoing: list[tuple[dict[Place, bool], Sender]] = []
        for peer in range(schedule.workers):
            if told := _told(schedule, owner, peer).get(rank):
                room = sum(self.proof.queues.values()) + len(told)
                self.outgoing.append((told, Sender(first + peer, lag=lag, room=room)))
        self.marks: dict[int, int] = {}  # of the labels of each batch, here or there

    def put(self, batch: int | None, payload: Any) -> None:
        """Feed a batch, and ask for all messages about it, or that none comes any more."""
        if batch is not None:
            self.compare(batch, fingerprint(payload[1]))
        super().put(batch, payload)
        for peer, told in self.due.items():
            for place, takes in told.items():
                at = self.fed if batch is None else batch
                self.receivers[peer].ask(self.places[place], at, empty=not takes)

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; one that takes too long ends this process."""
        with patience():
            return super().work(task, payload, worker)

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task of this rank has ended to all ranks that wait for it."""
        for told, sender in self.outgoing:
            if task.place in told:
                payload = output if told[task.place] else None
                sender.send(self.places[task.place], task.batch, self.marks[task.batch], payload)

    def listen(self, task: Task) -> None:
        """Hear of all tasks that a task waits for."""
        while (other := self.missing(task)) is not None:
            receiver, place = self.receivers[self.owner[other.stage]], self.places[other.place]
            self.hear_from(receiver, next(key for key in receiver.asked if key[0] == place))

    def hear_from(self, receiver: Receiver, key: tuple[int, int]) -> None:
        """Wait for a message; after the last batch it says that there is none."""
        place, batch, *_ = message = receiver.take(*key)
        if (message.mark == END) != (batch >= self.fed):
            raise ValueError(
                f"rank {dist.get_rank()} and another one have different numbers of batches: give"
                " every rank the same"
            )
        if message.mark != END:
            self.compare(batch, message.mark)
            kind, stage, micro = self.schedule.places[place]
            self.hear(Task(kind, stage, batch, micro), message.payload)

    def close(self) -> None:
        """Hear all others out, so that nobody hangs up on one that still sends."""
        for told, sender in self.outgoing:
            for place in told:
                sender.send(self.places[place], self.fed, END, None)
        for receiver in self.receivers.values():
            while receiver.asked:
                self.hear_from(receiver, next(iter(receiver.asked)))
        for _, sender in self.outgoing:
            sender.settle()

    def compare(self, batch: int, mark: int) -> None:
        """Refuse labels that differ between ranks."""
        self.marks = {b: own for b, own in self.marks.items() if b >= self.finished_below}
        if self.marks.setdefault(batch, mark) != mark:
            raise ValueError(
                f"batch {batch} has other labels on rank {dist.get_rank()} than on another rank:"
                " give every rank the same batches, in the same order"
            )


def _told(schedule: Schedule, owner: Sequence[int], rank: int) -> dict[int, dict[Place, bool]]:
    """Return the places that a rank hears of, by sender, and whether it takes their outputs."""
    found: dict[int, dict[Place, bool]] = defaultdict(lambda: defaultdict(bool))
    for kind, stage, micro in schedule.places:
        for edge in schedule.edges(Task(kind, stage, FAR, micro)) if owner[stage] == rank else ():
            if (teller := owner[edge.task.stage]) != rank:
                found[teller][edge.task.place] |= edge.kind == "data"
    return found
