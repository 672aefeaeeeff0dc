"""Profile blocks: seconds and bytes of each, what partitions and simulations are fed with.

Seconds are medians after warm-up, of copies, so nothing is trained. Neighbours share caches and
memory bandwidth; with `busy` the other cores do the same work meanwhile.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.data import tree
from alkit.engine.ledger import Ledger
from alkit.engine.run import run_single
from alkit.engine.stage import BlockStage, Stage
from alkit.schedule.costs import BlockCost
from alkit.schedule.task import Schedule, block_by_block
from alkit.schedule.timeline import Timeline

Batch = tuple[Any, Tensor]


@dataclass(frozen=True)
class Row:
    """Blocks as a row of stages, and the schedule that runs them one by one.

    Attributes:
        blocks: what each stage runs; theirs are the parameters that are counted.
        feed: makes of batches what the first stage takes.
    """

    blocks: Sequence[nn.Module]
    stages: Sequence[Stage]
    schedule: Schedule
    feed: Callable[[Iterable[Batch]], Iterator[Batch]] = iter

    def train(self, batches: Iterable[Batch], threads: int) -> Timeline:
        """Run all batches on the calling thread."""
        return run_single(self.schedule, self.stages, self.feed(batches), threads=threads)

    def sizes(self, batch: Batch) -> list[tuple[int, int, int]]:
        """Return what each stage hands on, what it keeps for its backward, and its parameters."""
        found, payload = [], next(self.feed([batch]))
        for block, stage in zip(self.blocks, self.stages, strict=True):
            ledger = Ledger(block)
            with ledger.recording(), torch.enable_grad():
                payload = stage.forward(payload, 0, 0)
            handed_on = _bytes(payload[0] if payload else ())
            found.append((handed_on, ledger.now, _bytes(list(block.parameters()))))
        return found


def backprop_row(
    blocks: Iterable[nn.Module],
    loss: Callable[[Any, Tensor], Tensor],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> Row:
    """Return a copy of blocks as stages under backprop, whose updates change nothing.

    Args:
        loss: of (output of the last block, y).
        optimizer: called as `optimizer(parameters, lr=0.0)` for every block that has some.
    """
    own = copy.deepcopy(list(blocks))

    def stage(block: nn.Module, is_last: bool) -> BlockStage:
        trained = [parameter for parameter in block.parameters() if parameter.requires_grad]
        stepped = optimizer(trained, lr=0.0) if trained else None
        return BlockStage(block, stepped, loss if is_last else None)

    stages = [stage(block, index == len(own) - 1) for index, block in enumerate(own)]
    return Row(own, stages, block_by_block(len(own)))


def profile_rows(
    make: Callable[[], Row],
    batches: Iterable[Batch],
    *,
    warmup: int = 2,
    threads: int = 1,
    busy: int = 1,
    progress: bool = True,
) -> list[BlockCost]:
    """Measure every stage of a row.

    Args:
        make: gives a new row; called once for each core at work.
        batches: a few of equal shape; the first `warmup` are not timed, nor, with busy neighbours,
            the last one, when a neighbour may have ended.
        threads: operator threads.
        busy: cores at work meanwhile, this one included.
    Raises:
        ValueError: too few batches.
    """
    batches = list(batches)
    last = len(batches) - (2 if busy > 1 else 1)
    if last < warmup:
        raise ValueError(
            f"{len(batches)} batches leave none to time after {warmup} of warm-up: give"
            f" {len(batches) + warmup - last} or more"
        )
    rows = [make() for _ in range(busy)]
    with ThreadPoolExecutor(busy) as pool:
        shown = tqdm(batches, desc="profiling blocks", disable=not progress, leave=False)
        streams = [shown, *[batches] * (busy - 1)]
        futures = [
            pool.submit(row.train, stream, threads)
            for row, stream in zip(rows, streams, strict=True)
        ]
        timelines = [future.result() for future in futures]
    seconds = defaultdict(float, timelines[0].between(warmup, last).task_s())
    return [
        BlockCost(
            seconds["forward", stage], seconds["backward", stage], seconds["update", stage], *sizes
        )
        for stage, sizes in enumerate(rows[0].sizes(batches[0]))
    ]


def _bytes(payload: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tree.tensors(payload))
