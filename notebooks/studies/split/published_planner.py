"""The published planner of PipeLearn, to compare with `alkit.split.planner`."""

import math

from alkit.split.planner import Workload, times_at
from alkit.split.profile import Link, Machine
from alkit.split.schedule import split_sizes
from alkit.split.times import Times, iteration_s

__all__ = ["hiding_micro", "published"]


def published(device: Machine, server: Machine, link: Link, workload: Workload) -> tuple[int, int]:
    """Return cut and micro-batches as published: 1 to all but one unit, and the number of
    micro-batches by `hiding_micro` alone."""
    found = []
    for cut in range(1, len(device.units)):
        times = times_at(device, server, link, workload, cut)
        micro = hiding_micro(times, workload.batch)
        sizes = split_sizes(workload.batch, micro, workload.least)
        found.append((iteration_s(times, sizes), cut, len(sizes)))
    _, cut, micro = min(found)
    return cut, micro


def hiding_micro(times: Times, samples: int, most: int = 100) -> int:
    """Return the number of micro-batches that hides the first one's round trip, as published.

        N_0 = ceil((u + s + d) / min(f, b)) + 1,   at most half the batch, at most `most`

    lowered so that all are of equal size. It hides latency and cannot remove a slow lane.
    """
    trip = sum(line.at(samples) for line in (times.up, times.server, times.down))
    own = min(times.forward.at(samples), times.backward.at(samples))
    wanted = math.ceil(trip / own) + 1 if own > 0 else most
    micro = max(1, min(wanted, samples // 2, most))
    return samples // (samples // micro)
