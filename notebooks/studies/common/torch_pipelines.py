"""What a user could pick instead, on the same blocks and batches: torch's pipelines, data parallel.

Each runs on ranks over gloo (`alkit.launch`), and returns a record as `train_epoch` does, whose
timeline has one interval a rank and batch.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn.parallel import DistributedDataParallel

from alkit.al.train import Trained
from alkit.engine.launch import launch
from alkit.engine.optimizers import adam
from alkit.schedule.timeline import Interval, Timeline
from studies.common.stacks import PICTURES, Stack

WARMUP = 2  # steps
TORCH_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}


def torch_pipeline(stack: Stack, schedule: str, micro: int, cuts: Sequence[int]) -> Trained:
    """Train the BP twin with `torch.distributed.pipelining`, a rank a group of blocks.

    Args:
        schedule: "gpipe" or "1f1b".
        micro: micro-batches per batch.
        cuts: the first block of every rank but the first; the head counts as a block.
    """
    if stack.texts % micro:
        raise ValueError(f"{stack.texts} samples do not divide into {micro} micro-batches")
    ranks = len(cuts) + 1
    parts = launch(_pipelined, stack, schedule, micro, cuts, ranks=ranks)
    return _record(stack, parts)


def data_parallel(stack: Stack, *, ranks: int = 2) -> Trained:
    """Train the BP twin with `DistributedDataParallel`, an equal part of each batch a rank."""
    if stack.texts % ranks:
        raise ValueError(f"{stack.texts} samples do not divide among {ranks} ranks")
    return _record(stack, launch(_replicated, stack, ranks=ranks))


def _pipelined(
    stack: Stack, name: str, micro: int, cuts: Sequence[int]
) -> list[tuple[float, float]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    blocks = list(stack.model("bp"))
    bounds = [0, *cuts, len(blocks)]
    own = _Chain(blocks[bounds[rank] : bounds[rank + 1]], stack.kind)
    stage = PipelineStage(own, rank, ranks, torch.device("cpu"))
    plan = get_schedule_class(TORCH_NAMES[name])(stage, micro, loss_fn=F.cross_entropy)
    optimizer = adam(own.parameters(), lr=1e-3)

    def step(x: Any, y: Tensor) -> float:
        inputs, losses = () if rank else tuple(_flat(x)), []
        plan.step(*inputs, **({"target": y, "losses": losses} if rank == ranks - 1 else {}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().item() if losses else 0.0

    return _timed(stack, step)


def _replicated(stack: Stack) -> list[tuple[float, float]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = stack.model("bp")
    parallel = DistributedDataParallel(model)

    def step(x: Any, y: Tensor) -> float:
        part = slice(rank * len(y) // ranks, (rank + 1) * len(y) // ranks)
        own = tuple(each[part] for each in x) if isinstance(x, tuple) else x[part]
        loss = F.cross_entropy(parallel(own), y[part])
        loss.backward()
        model.optimizer.step()
        model.optimizer.zero_grad(set_to_none=True)
        return loss.item() / ranks

    return _timed(stack, step)


def _timed(stack: Stack, step: Callable[[Any, Tensor], float]) -> list[tuple[float, float]]:
    """Run the steps; the first ones, which set things up, before the clock starts.

    Returns:
        For each batch the seconds from a barrier to its end, and this rank's share of its loss.
    """
    batches, done = list(stack.stream()), []
    for x, y in batches[:WARMUP]:
        step(x, y)
    dist.barrier()
    start_s = time.perf_counter()
    for x, y in batches:
        loss = step(x, y)
        done.append((time.perf_counter() - start_s, loss))
    return done


def _record(stack: Stack, parts: Sequence[Sequence[tuple[float, float]]]) -> Trained:
    """Return a record of all ranks' batches."""
    intervals = []
    for rank, done in enumerate(parts):
        ends_s = [end_s for end_s, _ in done]
        for batch, (start_s, end_s) in enumerate(zip([0.0, *ends_s], ends_s, strict=False)):
            intervals.append(Interval(f"worker {rank}", "step", rank, batch, 0, start_s, end_s))
    timeline = Timeline.of(intervals, [f"worker {rank}" for rank in range(len(parts))])
    losses = torch.tensor([[loss for _, loss in done] for done in parts]).sum(0)
    samples = stack.batches * stack.texts
    return Trained(losses[:, None, None], timeline, timeline.span_s, samples)


class _Chain(nn.Module):
    """Neighbouring blocks that take and return plain tensors, as torch's stages must.

    The texts of a stack are of full length, so their mask need not travel.
    """

    def __init__(self, blocks: Sequence[nn.Module], kind: str) -> None:
        super().__init__()
        self.blocks, self.kind = nn.ModuleList(blocks), kind

    def forward(self, x: Tensor, *states: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the last block's output: x, for an LSTM x, h and c, or at the end the scores."""
        x, *states = (PlainGradient.apply(tensor) for tensor in (x, *states))
        payload: Any = x
        if self.kind not in PICTURES:
            mask_BT = torch.ones(x.shape[:2], dtype=torch.bool)
            payload = (x, mask_BT, tuple(states)) if states else (x, mask_BT)
        for block in self.blocks:
            payload = block(payload)
        flat = [tensor.contiguous() for tensor in _flat(payload)]
        return flat[0] if len(flat) == 1 else tuple(flat)


class PlainGradient(torch.autograd.Function):
    """Pass a tensor on, and its gradient in plain memory order: gloo sends no other."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def _flat(payload: Any) -> list[Tensor]:
    """Return the tensors that need a gradient: not the mask."""
    if isinstance(payload, Tensor):
        return [payload]
    x, _, *states = payload
    return [x, *(states[0] if states else ())]
