"""Measure the cost of blocks, in seconds and bytes of each, and cut into groups of equal cost."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from alkit.engine.optimizers import Factory, made
from alkit.engine.run import run_single
from alkit.engine.stage import BlockStage
from alkit.schedule.flushed import block_by_block


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


def backprop_stages(
    blocks: Iterable[nn.Module], loss: Callable[[Any, Tensor], Tensor], optimizer: Factory
) -> list[BlockStage]:
    """Return a copy of blocks as stages under backprop, whose updates change nothing."""
    own = copy.deepcopy(list(blocks))
    stages = [BlockStage(each, made(optimizer, each.named_parameters(), lr=0.0)) for each in own]
    stages[-1].loss = loss
    return stages


def backprop_costs(
    stages: Sequence[BlockStage], batches: Iterable[Any], *, warmup: int, threads: int = 1
) -> list[tuple[float, ...]]:
    """Run stages on this thread; return the median seconds of forward, backward, update of each.

    Args:
        batches: of equal shape, as the first stage takes them; the first `warmup` don't count.
    """
    timeline = run_single(block_by_block(len(stages)), stages, batches, threads=threads)
    found = timeline.between(warmup, len(timeline.batch_ends_s) - 1).task_s()
    kinds = "forward", "backward", "update"
    return [tuple(found.get((kind, at), 0.0) for kind in kinds) for at in range(len(stages))]
