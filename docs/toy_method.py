"""A method of your own, in one file: SGD whose last stage takes every update one batch late.

    worker 0   F0......B0U0F1......B1U1F2          two stages; digits are batches
    worker 1     F0..B0      F1..B1U0    F2..      the weights that F2 sees lack batch 1

What it takes: a schedule (orders and edges) and stages (forward, backward, update). Every executor
runs it, the validator proves it, the clock times it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alkit.engine.stage import BlockStage
from alkit.schedule.task import Edge, Schedule, Task


def late_last(stages: int) -> Schedule:
    """Return the schedule: a stage a worker, one batch at a time, the last stage's update late."""
    last = stages - 1

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        for batch in batches:
            yield from (Task(kind, worker, batch) for kind in ("forward", "backward"))
            if worker < last or batch:
                yield Task("update", worker, batch - (worker == last))
        if worker == last:
            yield Task("update", worker, batch)

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, _ = task
        if kind == "update":
            return (Edge("order", Task("backward", stage, batch)),)
        if kind == "backward":
            own = Edge("order", Task("forward", stage, batch))
            return (own,) if stage == last else (own, Edge("data", task._replace(stage=stage + 1)))
        version = Edge("weights", Task("update", stage, batch - (2 if stage == last else 1)))
        return (version, Edge("data", task._replace(stage=stage - 1))) if stage else (version,)

    return Schedule("late_last", stages, stages, order, edges, staleness=1)


class LateStage(BlockStage):
    """A stage whose gradients wait until their update comes."""

    waiting: Sequence[Sequence[Tensor | None]] = ()

    def backward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take the gradients of the output, hand on those of the input, keep those of weights."""
        handed = super().backward(payload, batch, micro)
        self.waiting = [*self.waiting, [p.grad for p in self.block.parameters()]]
        self.block.zero_grad(set_to_none=True)
        return handed

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step with the oldest gradients."""
        oldest, *self.waiting = self.waiting
        for parameter, gradient in zip(self.block.parameters(), oldest, strict=True):
            parameter.grad = gradient
        super().update(payload, batch, micro)


def train(
    blocks: Sequence[nn.Module], loss: Callable[..., Tensor], batches: Iterable[Any], run: Callable
) -> list[float]:
    """Train in place with an executor; return the losses, on ranks of the last one."""
    losses: list[float] = []

    def noted(output: Tensor, y: Tensor) -> Tensor:
        found = loss(output, y)
        losses.append(found.item())
        return found

    *lower, last = ((block, torch.optim.SGD(block.parameters(), 0.1)) for block in blocks)
    stages = [*(BlockStage(*each) for each in lower), LateStage(*last, noted)]
    run(late_last(len(stages)), stages, batches)
    return losses
