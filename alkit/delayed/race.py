"""Time methods on ranks beside torch's own pipeline, and predict them in the clock.

Costs of the blocks are measured on ranks: on one rank, with nobody beside it, and on all at a time.
A task is as slow as the others let it be, so the clock takes, for each method,

    seq            alone: one module works at a time
    *_barrier      forwards alone, backwards beside the others
    the others     everything beside the others

and for what travels between ranks the time that bytes took in a test.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from alkit import rivals
from alkit.channel import Inbox, Outbox
from alkit.clock import simulate
from alkit.contenders import fastest_micro, mean, profiled
from alkit.costs import BlockCost
from alkit.delayed.methods import METHODS
from alkit.delayed.modules import Pipeline
from alkit.delayed.schedules import schedule_for
from alkit.delayed.train import Record, train_epoch
from alkit.layers import adam
from alkit.ranks import launch
from alkit.schedule import Task
from alkit.stacks import Stack
from alkit.timeline import Timeline

__all__ = ["Costs", "contenders", "measure", "on_ranks", "predicted"]

SENDS = 20  # of a test message


class Costs:
    """What the blocks of a stack's BP twin cost, and what travelling does.

    Attributes:
        alone, busy: of each block, with idle and with working neighbours.
        bytes_s: bytes a second between two ranks.
    """

    def __init__(
        self, alone: Sequence[BlockCost], busy: Sequence[BlockCost], bytes_s: float
    ) -> None:
        self.alone, self.busy, self.bytes_s = list(alone), list(busy), bytes_s


def measure(stack: Stack, ranks: int = 2) -> Costs:
    """Measure all costs now."""
    found = launch(_measured, stack, ranks=ranks)
    busy = [mean(costs) for costs in zip(*(one["busy"] for one in found), strict=True)]
    size = max(cost.output_bytes for cost in busy)
    return Costs(found[0]["alone"], busy, size / found[1]["sent_s"])


def on_ranks(stack: Stack, method: str, cuts: Sequence[int]) -> Record:
    """Train the stack's BP twin with a method, a rank a module; return what all recorded."""
    return launch(_trained, stack, method, list(cuts), ranks=len(cuts) + 1)[0]


def contenders(
    stack: Stack,
    methods: Sequence[str],
    cuts: Mapping[str, Sequence[int]],
    micro: Sequence[int] = (2, 4, 8, 16),
) -> dict[str, Callable[[], Record]]:
    """Return, by name, functions that train the stack anew: the methods, and torch's 1F1B.

    Args:
        cuts: of each method, and of "1f1b".
        micro: numbers of micro-batches to try for torch's pipeline; the fastest is taken.
    """
    made = {method: partial(on_ranks, stack, method, cuts[method]) for method in methods}
    best = fastest_micro(stack, "1f1b", cuts["1f1b"], micro)
    return made | {"1f1b": partial(rivals.torch_pipeline, stack, "1f1b", best, cuts["1f1b"])}


def predicted(
    method: str, costs: Costs, cuts: Sequence[int], batches: int, *, links: bool = True
) -> Timeline:
    """Return the timeline that the clock expects.

    Args:
        links: let outputs take time between ranks.
    """
    stages = len(cuts) + 1
    bounds = [0, *cuts, len(costs.busy)]
    again = METHODS[method].backward in ("replay", "recompute")

    def module_s(kind: str, stage: int, those: Sequence[BlockCost]) -> float:
        return sum(getattr(cost, f"{kind}_s") for cost in those[bounds[stage] : bounds[stage + 1]])

    def seconds(task: Task) -> float:
        own = module_s(task.kind, task.stage, _costs_of(method, task.kind, costs))
        if again and task.kind == "backward" and task.stage < stages - 1:
            own += module_s("forward", task.stage, costs.busy)  # it runs beside the others
        return own

    def travel_s(task: Task) -> float:
        cut = cuts[task.stage if task.kind == "forward" else task.stage - 1]
        return costs.busy[cut - 1].output_bytes / costs.bytes_s

    schedule = schedule_for(method, stages)
    return simulate(schedule, seconds, batches, link_s=travel_s if links else None)


def _costs_of(method: str, kind: str, costs: Costs) -> list[BlockCost]:
    order = METHODS[method].order
    if order == "seq" or (order == "barrier" and kind == "forward"):
        return costs.alone
    return costs.busy


def _trained(stack: Stack, method: str, cuts: Sequence[int]) -> Record:
    pipeline = Pipeline(stack.model("bp"), F.cross_entropy, cuts, partial(adam, lr=1e-3))
    record = train_epoch(pipeline, list(stack.stream()), method, "ranks")
    return Record(**{**vars(record), "pipeline": None})  # weights need not travel to the caller


def _measured(stack: Stack) -> dict[str, Any]:
    """Profile on rank 0 alone, then on all ranks at the same time; then send a batch's output."""
    alone = profiled(stack, "bp") if dist.get_rank() == 0 else []
    dist.barrier()
    busy = profiled(stack, "bp")
    return {
        "alone": alone,
        "busy": busy,
        "sent_s": _sent_s(max(cost.output_bytes for cost in busy)),
    }


def _sent_s(size: int) -> float:
    """Return the seconds that so many bytes take from rank 0 to rank 1, the median, on rank 1."""
    if dist.get_rank() > 1:
        return 0.0
    payload, times = torch.zeros(max(1, size // 4)), []
    outbox, inbox = Outbox(1 - dist.get_rank()), Inbox(1 - dist.get_rank())
    for number in range(SENDS):  # there and back, so that nobody is ahead
        start_s = time.perf_counter()
        if dist.get_rank() == 0:
            outbox.send(number, 0, payload)
            inbox.take()
        else:
            inbox.take()
            outbox.send(number, 0, payload)
        times.append((time.perf_counter() - start_s) / 2)
    outbox.close()
    inbox.take()
    return statistics.median(times)
