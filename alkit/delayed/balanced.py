"""Where `cuts="balanced"` cuts: the slowest module is as fast as neighbouring blocks allow.

    two samples, repeated to a batch ──► seconds of every block ──► cuts into balanced modules

A copy is measured, in float32 and on the model's device or the one that is asked for, so nothing is
trained and no sample of the data is drawn.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from alkit.base import tree
from alkit.engine.costs import backprop_row, balanced_cuts, profile_rows
from alkit.engine.device import cores, devices_named, place
from alkit.engine.group import Group
from alkit.engine.plan import Plan

WARMUP, TIMED = 1, 4  # batches


def cuts_of(blocks: list[nn.Module], plan: Plan, modules: int) -> list[int]:
    """Return the cuts into so many modules; ranks take those of the first."""
    return Group().from_first(_measured, blocks, plan, modules)


def _measured(blocks: list[nn.Module], plan: Plan, modules: int) -> list[int]:
    own = copy.deepcopy(nn.ModuleList(blocks))
    if plan.own_device is not None:
        own.to(devices_named(plan.own_device)[0])
    return balanced_cuts(_seconds(own, plan, min(modules, cores())), modules)


def _seconds(own: nn.ModuleList, plan: Plan, busy: int) -> list[float]:
    """Measure a batch of repeated samples; neighbours are at work meanwhile, as in training."""
    assert plan.sample is not None
    size = plan.batch_size
    x, y = (tree.map_tensors(lambda each: _repeated(each, size), part) for part in plan.sample)
    with torch.random.fork_rng():
        costs = profile_rows(
            lambda: backprop_row(own, plan.loss or F.cross_entropy, torch.optim.SGD),
            [place((x, y), own)] * (WARMUP + TIMED + 1),
            warmup=WARMUP,
            threads=plan.threads,
            busy=busy,
            progress=plan.progress,
        )
    return [cost.seconds for cost in costs]


def _repeated(each: torch.Tensor, size: int) -> torch.Tensor:
    return each.repeat(-(-size // len(each)), *[1] * (each.dim() - 1))[:size]
