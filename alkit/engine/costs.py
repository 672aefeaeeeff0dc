"""What blocks cost, measured: seconds and bytes of each; and cuts into groups of equal cost.

Seconds are medians after warm-up, of copies, so nothing is trained.
"""

import copy
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.base import tree
from alkit.engine.run import run_single
from alkit.engine.stage import BlockStage, Stage
from alkit.schedule.flushed import block_by_block
from alkit.schedule.task import Schedule


@dataclass(frozen=True)
class BlockCost:
    """What a batch costs in a block, or an AL layer."""

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


def balanced_cuts(costs: Sequence[float], groups: int) -> list[int]:
    """Return the cuts that make the dearest of `groups` neighbouring groups as cheap as can be.

    A cut is the first block of a group but the first; no group is empty.
    """
    if not 1 <= groups <= len(costs):
        raise ValueError(f"{groups} groups for {len(costs)} blocks: give 1 to {len(costs)}")
    total = list(accumulate(costs, initial=0.0))

    @cache
    def best(end: int, groups: int) -> tuple[float, tuple[int, ...]]:
        # of the first blocks up to `end`: the cost of the dearest group, and the cuts
        if groups == 1:
            return total[end], ()
        before = ((cut, *best(cut, groups - 1)) for cut in range(groups - 1, end))
        found = ((max(most, total[end] - total[cut]), (*cuts, cut)) for cut, most, cuts in before)
        return min(found, key=itemgetter(0))

    return [*best(len(costs), groups)[1]]


class Ledger:
    """The bytes that autograd keeps for the backward, exactly, on any device, from any thread.

    A storage counts once, however often it is saved, until autograd lets it go. Parameters and
    buffers of `model` don't count. What an operator keeps inside itself is not seen. `now` is kept
    at present, `peak` was the most.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        own = [] if model is None else [*model.parameters(), *model.buffers()]
        self.now = self.peak = 0
        self._own = {_storage(tensor)[0] for tensor in own}
        self._holders = Counter[int]()  # by address of a storage: saved tensors that use it
        self._lock = threading.RLock()  # freeing a tensor may run inside an allocation of ours

    @contextmanager
    def recording(self, *own: Iterable[Tensor]) -> Iterator[None]:
        """Count what forwards of the calling thread save in this block, but for `own` tensors."""
        addresses = self._own | {_storage(tensor)[0] for tensors in own for tensor in tensors}

        def pack(tensor: Tensor) -> Tensor:
            address, size = _storage(tensor)
            if not size or address in addresses:
                return tensor
            # an output that is saved would otherwise hold the node that holds it
            kept = tensor.detach()
            self._count(address, size, 1)
            weakref.finalize(kept, self._count, address, size, -1)  # when autograd drops it
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            yield

    def _count(self, address: int, size: int, change: int) -> None:
        """Note one more, or one less, saved tensor of a storage."""
        with self._lock:
            before = self._holders[address]
            self._holders[address] += change
            if not min(before, before + change):  # the first one, or the last
                self.now += change * size
                self.peak = max(self.peak, self.now)
            if not self._holders[address]:
                del self._holders[address]


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return address and bytes of what the tensor is a view of."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


class Row(NamedTuple):
    """Blocks, the stages that run them, and a schedule of one stage after the other."""

    blocks: Sequence[nn.Module]
    stages: Sequence[Stage]
    schedule: Schedule


def backprop_row(
    blocks: Iterable[nn.Module],
    loss: Callable[[Any, Tensor], Tensor],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> Row:
    """Return a copy of blocks as stages under backprop, whose updates change nothing."""
    own, stages = copy.deepcopy(list(blocks)), list[BlockStage]()
    for block in own:
        trained = [parameter for parameter in block.parameters() if parameter.requires_grad]
        stages.append(BlockStage(block, optimizer(trained, lr=0.0) if trained else None))
    stages[-1].loss = loss
    return Row(own, stages, block_by_block(len(own)))


def profile_rows(
    make: Callable[[], Row],
    batches: Iterable[Any],
    *,
    warmup: int = 2,
    threads: int = 1,
    busy: int = 1,
    progress: bool = True,
) -> list[BlockCost]:
    """Measure every stage of a row.

    Args:
        make: gives a new row; called once for each core at work.
        batches: a few of equal shape, as the first stage takes them. The first `warmup` are not
            timed, nor, with busy neighbours, the last one, when a neighbour may have ended.
        busy: cores at work meanwhile, this one included.
    """
    batches = list(batches)
    last = len(batches) - (2 if busy > 1 else 1)
    if last < warmup:
        least = len(batches) + warmup - last
        raise ValueError(f"{len(batches)} batches leave none to time: give {least} or more")
    rows = [make() for _ in range(busy)]
    with ThreadPoolExecutor(busy) as pool:
        shown = tqdm(batches, desc="profiling blocks", disable=not progress, leave=False)
        streams = [shown, *[batches] * (busy - 1)]
        futures = [
            pool.submit(run_single, row.schedule, row.stages, stream, threads=threads)
            for row, stream in zip(rows, streams, strict=True)
        ]
        timelines = [future.result() for future in futures]
    seconds = defaultdict(float, timelines[0].between(warmup, last).task_s())
    return [
        BlockCost(seconds["forward", at], seconds["backward", at], seconds["update", at], *sizes)
        for at, sizes in enumerate(_sizes(rows[0], batches[0]))
    ]


def _sizes(row: Row, payload: Any) -> Iterator[tuple[int, int, int]]:
    """Yield what each stage hands on, what it keeps for its backward, and its parameters."""
    for block, stage in zip(row.blocks, row.stages, strict=True):
        ledger = Ledger(block)
        with ledger.recording(), torch.enable_grad():
            payload = stage.forward(payload, 0, 0)
        handed_on = sum(each.nbytes for each in tree.tensors(payload[0] if payload else ()))
        yield handed_on, ledger.now, sum(each.nbytes for each in block.parameters())
