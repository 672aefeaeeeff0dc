"""Where `cuts="auto"` cuts: by what blocks cost here, within the memory of a worker.

    two samples, repeated to a batch ──► every block's seconds and bytes ──► the best cuts that fit

A copy is measured, in float32 and on the model's device or the one that is asked for, so nothing is
trained and no sample of the data is drawn.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from alkit.data import tree
from alkit.delayed.modules import sgd
from alkit.delayed.planner import best_cuts
from alkit.engine.device import cores, devices_named, place
from alkit.engine.optimizers import made
from alkit.engine.profile import backprop_row, profile_rows
from alkit.engine.request import Request
from alkit.schedule.costs import BlockCost

WARMUP, TIMED = 1, 4  # batches


def auto_cuts(blocks: list[nn.Module], request: Request, modules: int) -> list[int]:
    """Return the cuts with which the method takes the shortest time a batch.

    Raises:
        ValueError: nothing fits into `memory` bytes per worker; says what would.
    """
    return request.group.from_first(_measured, blocks, request, modules)


def _measured(blocks: list[nn.Module], request: Request, modules: int) -> list[int]:
    own = copy.deepcopy(nn.ModuleList(blocks))
    if request.own_device is not None:
        own.to(devices_named(request.own_device)[0])
    costs, input_bytes = _costs(own, request, min(modules, cores()))
    return best_cuts(
        request.method,
        costs,
        modules,
        memory=request.memory,
        input_bytes=input_bytes,
        states=_states(own, request),
        micro=request.micro,
        recompute=request.changes.get("recompute", False),
    )


def _costs(own: nn.ModuleList, request: Request, busy: int) -> tuple[list[BlockCost], int]:
    """Measure a batch of repeated samples; neighbours are at work meanwhile, as in training."""
    assert request.sample is not None
    size = request.plan.batch_size
    x, y = (tree.map_tensors(lambda each: _repeated(each, size), part) for part in request.sample)
    with torch.random.fork_rng():
        costs = profile_rows(
            lambda: backprop_row(own, request.loss or F.cross_entropy, torch.optim.SGD),
            [place((x, y), own)] * (WARMUP + TIMED + 1),
            warmup=WARMUP,
            threads=request.threads,
            busy=busy,
            progress=request.progress,
        )
    return costs, sum(each.numel() * each.element_size() for each in tree.tensors(x))


def _repeated(each: torch.Tensor, size: int) -> torch.Tensor:
    return each.repeat(-(-size // len(each)), *[1] * (each.dim() - 1))[:size]


def _states(own: nn.ModuleList, request: Request) -> int:
    """Return how many tensors the optimiser keeps of a parameter, after a step of the copy."""
    rate = {} if request.one_lr is None else {"lr": request.one_lr}
    optimizer = made(request.optimizer or sgd, own.named_parameters(), **rate)
    if optimizer is None:
        return 0
    trained = [each for each in own.parameters() if each.requires_grad]
    for each in trained:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    kept = [each for state in optimizer.state.values() for each in state.values()]
    numbers = sum(each.numel() for each in kept if isinstance(each, torch.Tensor))
    return round(numbers / sum(each.numel() for each in trained))
