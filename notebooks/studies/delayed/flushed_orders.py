"""The orders of one gradient on two workers: measured, and what the simulator says of them.

A run on one thread tells what each task of each module takes alone, one of a single micro-batch
what its graphs keep; a worker's idle share and its peak follow from these and the schedule alone.
What a batch's own samples take is counted nowhere.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.delayed import Pipeline, even_cuts, schedule_for, train_epoch
from alkit.delayed.methods import ORDERS as ORDERS
from alkit.delayed.schedules import SHARED
from alkit.schedule.clock import simulate
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Interval, Timeline
from studies.common.ledger import Ledger
from studies.delayed.memory import counting

DONE = ("backward", "backward_weight")  # what lets a graph go
Batches = Sequence[tuple[Tensor, Tensor]]
Measured = tuple[Timeline, list[int]]


class Residual(nn.Module):
    """x + MLP(x): blocks that all take alike."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width)."""
        return x + self.inner(x)


def blocks(width: int, count: int = 8, seed: int = 0) -> list[nn.Module]:
    """Return blocks of (B, width), the last of which gives scores of ten classes."""
    torch.manual_seed(seed)
    made = [Residual(width) for _ in range(count)]
    return [*made[:-1], nn.Sequential(made[-1], nn.Linear(width, 10))]


def modules_of(method: str, workers: int) -> int:
    """Return how many modules a method cuts for its workers: one each, or two."""
    return workers * (2 if method in SHARED else 1)


def _owners(schedule: Schedule) -> list[int]:
    """Return the worker of each stage."""
    found = {
        task.stage: lane for lane in range(schedule.workers) for task in schedule.one_batch(lane)
    }
    return [found[stage] for stage in range(schedule.stages)]


def measured(
    method: str,
    network: Sequence[nn.Module],
    batches: Batches,
    *,
    workers: int,
    micro: int,
    executor: str = "threads",
) -> Measured:
    """Train, and return the timeline and each worker's peak of bytes that graphs keep."""
    modules = modules_of(method, workers)
    made = Pipeline(network, F.cross_entropy, even_cuts(len(network), modules), _sgd)
    ledgers = [_ledger(network, batches) for _ in range(workers)]
    at = _owners(schedule_for(method, modules, micro, workers=workers))
    counting(made, [ledgers[own] for own in at])
    record = train_epoch(made, batches, method, executor, micro=micro)
    return record.timeline, [ledger.peak for ledger in ledgers]


def alone(timeline: Timeline) -> dict[tuple[str, int], float]:
    """Return the median seconds of each (kind, module) of a run after its first batch."""
    found: dict[tuple[str, int], list[float]] = {}
    for own in timeline.intervals:
        if own.batch:
            found.setdefault((own.kind, own.stage), []).append(own.end_s - own.start_s)
    return {key: float(torch.tensor(own).median()) for key, own in found.items()}


def graph_bytes(network: Sequence[nn.Module], one: Batches, modules: int) -> list[int]:
    """Return what each module's graph keeps of a micro-batch, the only one of `one`."""
    made = Pipeline(network, F.cross_entropy, even_cuts(len(network), modules), _sgd)
    ledgers = [_ledger(network, one) for _ in range(modules)]
    counting(made, ledgers)
    train_epoch(made, one, "seq")
    return [ledger.peak for ledger in ledgers]


def expected(
    method: str,
    seconds: Mapping[tuple[str, int], float],
    kept: Sequence[int],
    batches: int,
    *,
    workers: int,
    micro: int,
) -> Measured:
    """Return the simulated timeline, and each worker's peak of bytes.

    Args:
        seconds: of each (kind, module).
        kept: by each module's graph of a micro-batch.
    """
    schedule = schedule_for(method, len(kept), micro, workers=workers)
    timeline = simulate(schedule, lambda task: seconds[task.kind, task.stage], batches)
    return timeline, [_most(timeline, worker, kept) for worker in timeline.resources]


def _most(timeline: Timeline, worker: str, kept: Sequence[int]) -> int:
    now = most = 0
    for own in sorted((i for i in timeline.intervals if i.resource == worker), key=_start):
        now += ((own.kind == "forward") - (own.kind in DONE)) * kept[own.stage]
        most = max(most, now)
    return most


def _start(interval: Interval) -> float:
    return interval.start_s


def _ledger(network: Sequence[nn.Module], batches: Batches) -> Ledger:
    """Return one that counts neither weights nor samples."""
    samples = nn.Module()
    for at, (x, _) in enumerate(batches):
        samples.register_buffer(f"x{at}", x)
    return Ledger(nn.ModuleList([*network, samples]))


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)
