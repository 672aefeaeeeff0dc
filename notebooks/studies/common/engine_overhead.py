"""What the engine itself costs: queues, locks, threads and Python around the tasks.

A stack of layers that each do nothing but one matrix product of a chosen length runs through the
pipeline; what a worker's batches take beyond its tasks is the engine's:

    worker 0   [F][B][U].[F][B][U].[F][B][U].      overhead = (step - tasks of the slowest worker)
    worker 1      [F][B][U].[F][B][U].[F][B][U]               / step
"""

import time
from typing import Any

import torch

from alkit.engine.run import run_threads
from alkit.schedule.task import al, al_pipeline, free_workers
from alkit.schedule.timeline import Timeline

SHARES = {"forward": 0.3, "backward": 0.6, "update": 0.1}  # of a block's time
SIDE = 128  # of the square matrix that is multiplied from the right


def overhead(block_ms: float, workers: int, batches: int = 100, layers: int | None = None) -> float:
    """Return the share of a step that is not spent in tasks, 0 to 1.

    Args:
        block_ms: how long a block should take for forward, backward and update together.
        workers: 1 for `al`, more for `al_pipeline`.
        batches: after a quarter of them the measurement begins.
        layers: default one a worker; if there are more, workers are free.
    """
    timeline = run(block_ms, workers, batches, layers).between(batches // 4, batches - 1)
    tasks_s = max(timeline.busy_s(name) for name in timeline.resources)
    return 1 - tasks_s / timeline.span_s


def run(block_ms: float, workers: int, batches: int, layers: int | None = None) -> Timeline:
    """Run the layers; no other process should be busy meanwhile."""
    if block_ms <= 0 or workers < 1:
        raise ValueError(f"block_ms is {block_ms} and workers is {workers}: both must be positive")
    layers = layers or workers
    rows_a_ms = _rows_a_ms()
    stages = [_Products(block_ms, rows_a_ms) for _ in range(layers)]
    schedule = al(layers) if workers == 1 else al_pipeline(layers)
    if 1 < workers < layers:
        schedule = free_workers(schedule, workers)
    return run_threads(schedule, stages, [None] * batches, threads=1)


class _Products:
    """A stage whose tasks are one matrix product each."""

    def __init__(self, block_ms: float, rows_a_ms: float) -> None:
        rows = {kind: max(1, round(share * block_ms * rows_a_ms)) for kind, share in SHARES.items()}
        self.left = {kind: torch.zeros(count, SIDE) for kind, count in rows.items()}
        self.out = {kind: torch.empty(count, SIDE) for kind, count in rows.items()}
        self.right = torch.zeros(SIDE, SIDE)

    def forward(self, payload: Any, batch: int, micro: int) -> str:
        self._multiply("forward")
        return "payload"

    def backward(self, payload: Any, batch: int, micro: int) -> None:
        self._multiply("backward")

    def update(self, payload: Any, batch: int, micro: int) -> None:
        self._multiply("update")

    def _multiply(self, kind: str) -> None:
        torch.mm(self.left[kind], self.right, out=self.out[kind])


def _rows_a_ms() -> float:
    """Return how many rows of a product take a millisecond, the median of a few tries."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.zeros(8192, SIDE), torch.zeros(SIDE, SIDE)
        out, seconds = torch.empty(8192, SIDE), []
        for _ in range(9):
            start_s = time.perf_counter()
            torch.mm(left, right, out=out)
            seconds.append(time.perf_counter() - start_s)
        return 8192 / (1000 * sorted(seconds)[4])
    finally:
        torch.set_num_threads(before)
