"""Profile models: every layer of one under associated learning, every block of one under backprop.

costs = profile(to_al(blocks, num_classes=10), batches)
balanced_cuts([cost.seconds for cost in costs], 2)
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.al.stages import Epoch, updating
from alkit.base import tree
from alkit.engine.costs import backprop_stages
from alkit.engine.optimizers import adam
from alkit.engine.run import run_single
from alkit.engine.stage import Stage
from alkit.schedule.flushed import block_by_block
from alkit.schedule.task import Schedule, al
from studies.common.ledger import Ledger


@dataclass(frozen=True)
class Cost:
    """What a batch costs in a block, or an AL layer: seconds, and bytes."""

    forward_s: float
    backward_s: float
    update_s: float
    output_bytes: int = 0  # handed on; back-propagated gradients are as large
    saved_bytes: int = 0  # kept from forward to backward
    parameter_bytes: int = 0  # without gradients and optimiser states

    @property
    def seconds(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


class _Row(NamedTuple):
    blocks: Sequence[nn.Module]
    stages: Sequence[Stage]
    schedule: Schedule


def profile(
    model: ALModel | BPModel,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    warmup: int = 2,
    busy: int = 1,
) -> list[Cost]:
    """Measure a copy of the model, layer by layer or block by block: medians, on one thread.

    Args:
        batches: a few of equal shape. The first `warmup` are not timed, nor, with busy neighbours,
            the last one, when a neighbour may have ended.
        busy: cores that do the same work meanwhile, this one included.
    """
    is_al = isinstance(model, ALModel)
    fed = list(Epoch(copy.deepcopy(model)).counted(batches) if is_al else batches)
    last = len(fed) - (2 if busy > 1 else 1)
    if last < warmup:
        least = len(fed) + warmup - last
        raise ValueError(f"{len(fed)} batches leave none to time: give {least} or more")
    rows = [_row(model) for _ in range(busy)]
    with ThreadPoolExecutor(busy) as pool:
        runs = [pool.submit(run_single, row.schedule, row.stages, fed) for row in rows]
        timelines = [run.result() for run in runs]
    seconds = defaultdict(float, timelines[0].between(warmup, last).task_s())
    return [
        Cost(seconds["forward", at], seconds["backward", at], seconds["update", at], *sizes)
        for at, sizes in enumerate(_sizes(rows[0], fed[0]))
    ]


def _row(model: ALModel | BPModel) -> _Row:
    if isinstance(model, BPModel):
        stages = backprop_stages(model, model.loss_fn, adam)
        return _Row([stage.block for stage in stages], stages, block_by_block(len(stages)))
    copied = copy.deepcopy(model)
    layers = Epoch(copied).stages
    return _Row(updating(copied), layers, al(len(layers)))


def _sizes(row: _Row, payload: Any) -> Iterator[tuple[int, int, int]]:
    """Yield what each stage hands on, what it keeps for its backward, and its parameters."""
    for block, stage in zip(row.blocks, row.stages, strict=True):
        with (ledger := Ledger(block)).recording(), torch.enable_grad():
            payload = stage.forward(payload, 0, 0)
        handed_on = sum(each.nbytes for each in tree.tensors(payload[0] if payload else ()))
        parameters = sum(each.nbytes for each in block.parameters())
        yield handed_on, ledger.now, parameters
