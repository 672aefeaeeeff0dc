"""Which process runs which feedback loop, by the seconds that the loops take."""

import copy
import time
from collections.abc import Sequence

from torch import Tensor

from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.networks import Pass
from alkit.engine.group import Group


def assigned(
    feedback: BlockFeedback | None, sample: Tensor, owners: Sequence[int] | None, group: Group
) -> tuple[list[float], list[int]]:
    """Return each loop's seconds, as rank 0 measures them, and its rank; the same on all ranks.

    Args:
        sample: a batch of inputs to measure with.
        owners: ranks that are given instead; then nothing is measured.
    Raises:
        ValueError: owners that don't fit; says what is wanted.
    """
    if feedback is None:
        return [], []
    if owners is not None:
        if len(owners) != len(feedback.loops) or not set(owners) <= set(range(group.ranks)):
            names = ", ".join(feedback.net.label(n) for n in feedback.loops)
            raise ValueError(
                f"owners is {owners}: give the rank, 0 to {group.ranks - 1}, of each of"
                f" {len(feedback.loops)} loops ({names})"
            )
        return [], list(owners)
    measured = measured_loads(feedback, feedback.net.locally(sample)) if group.rank == 0 else None
    loads = group.broadcast(measured)
    return loads, longest_first(loads, group.ranks)


def longest_first(loads: Sequence[float], workers: int) -> list[int]:
    """Return each loop's process: the longest first, always to the one with the least to do.

    Raises:
        ValueError: no process.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}: it must be at least 1")
    owners, busy = [0] * len(loads), [0.0] * workers
    for at in sorted(range(len(loads)), key=lambda at: -loads[at]):
        owners[at] = min(range(workers), key=lambda worker: busy[worker])
        busy[owners[at]] += loads[at]
    return owners


def measured_loads(feedback: BlockFeedback, run: Pass) -> list[float]:
    """Return the seconds of each block's loop for a batch, from loops of 1 and of 3 iterations."""
    feedback = copy.deepcopy(feedback)  # with its network: measuring changes nothing
    return [_seconds(feedback, n, run) for n in feedback.loops]


def _seconds(feedback: BlockFeedback, n: int, run: Pass) -> float:
    if not feedback.iterations(n):
        return 0.0
    found = []
    for iterations in (1, 1, 3):  # the first one warms up
        start_s = time.perf_counter()
        feedback.learn(n, run, step=-1, iterations=iterations)
        found.append(time.perf_counter() - start_s)
    _, short, long = found
    return (max(long - short, 0.0) / 2 or short) * feedback.iterations(n)
