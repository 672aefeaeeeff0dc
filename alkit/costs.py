"""Profile blocks: seconds and bytes of each, what partitions and simulations are fed with.

Seconds are medians after warm-up, of a copy of the model, so nothing is trained. Neighbours share
caches and memory bandwidth; with `busy` the other cores do the same work meanwhile.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit import tree
from alkit.backprop import BPModel
from alkit.engine import Stage, run_single
from alkit.layers import adam
from alkit.ledger import Ledger
from alkit.model import ALModel
from alkit.schedule import Schedule, al, block_by_block
from alkit.stages import BlockStage, Epoch
from alkit.timeline import Timeline

__all__ = ["BlockCost", "durations", "profile"]

Batch = tuple[Any, Tensor]


@dataclass(frozen=True)
class BlockCost:
    """What a block, or an AL layer, costs.

    Attributes:
        forward_s, backward_s, update_s: seconds a batch.
        output_bytes: handed to the next block; back-propagated gradients are as large.
        saved_bytes: kept from forward to backward.
        parameter_bytes: without gradients and optimiser states.
    """

    forward_s: float
    backward_s: float
    update_s: float
    output_bytes: int = 0
    saved_bytes: int = 0
    parameter_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


def profile(
    model: ALModel | BPModel,
    batches: Iterable[Batch],
    *,
    warmup: int = 2,
    threads: int = 1,
    busy: int = 1,
    progress: bool = True,
) -> list[BlockCost]:
    """Measure every layer of an AL model, or every block of a BP model.

    Args:
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
    runs = [_Profiled(model) for _ in range(busy)]
    with ThreadPoolExecutor(busy) as pool:
        shown = tqdm(batches, desc="profiling blocks", disable=not progress, leave=False)
        streams = [shown, *[batches] * (busy - 1)]
        futures = [
            pool.submit(run.train, stream, threads)
            for run, stream in zip(runs, streams, strict=True)
        ]
        timelines = [future.result() for future in futures]
    seconds = timelines[0].between(warmup, last).task_s()
    return [
        BlockCost(
            *(seconds.get((kind, stage), 0.0) for kind in ("forward", "backward", "update")),
            *sizes,
        )
        for stage, sizes in enumerate(runs[0].bytes(batches[0]))
    ]


def durations(costs: Sequence[BlockCost]) -> Mapping[tuple[str, int], float]:
    """Return the costs as `alkit.clock.simulate` takes them: seconds by (kind, stage)."""
    return {
        (kind, stage): getattr(cost, f"{kind}_s")
        for stage, cost in enumerate(costs)
        for kind in ("forward", "backward", "update")
    }


class _Profiled:
    """A copy of a model as a row of stages, and the schedule that runs them one by one."""

    def __init__(self, model: ALModel | BPModel) -> None:
        self.model = copy.deepcopy(model)
        self.epoch = Epoch(self.model)
        self.stages, self.schedule = self._stages()

    def train(self, batches: Iterable[Batch], threads: int) -> Timeline:
        stream = self.epoch.counted(batches)
        return run_single(self.schedule, self.stages, stream, threads=threads)

    def bytes(self, batch: Batch) -> list[tuple[int, int, int]]:
        """Return what each stage hands on, what it keeps for its backward, and its parameters."""
        found, payload = [], next(self.epoch.counted([batch]))
        for block, stage in zip(self.model, self.stages, strict=True):
            ledger = Ledger(block)
            with ledger.recording(), torch.enable_grad():
                payload = stage.forward(payload, 0, 0)
            sizes = (
                _size(payload[0] if payload else ()),
                ledger.now,
                _size(list(block.parameters())),
            )
            found.append(sizes)
        return found

    def _stages(self) -> tuple[list[Stage], Schedule]:
        if isinstance(self.model, ALModel):
            return list(self.epoch.stages), al(len(self.model))
        last = len(self.model) - 1
        stages: list[Stage] = [
            BlockStage(block, _adam(block), self.model.loss_fn if index == last else None)
            for index, block in enumerate(self.model)
        ]
        return stages, block_by_block(len(stages))


def _adam(block: nn.Module) -> torch.optim.Optimizer | None:
    own = [parameter for parameter in block.parameters() if parameter.requires_grad]
    return adam(own, lr=0.0) if own else None


def _size(payload: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tree.tensors(payload))
