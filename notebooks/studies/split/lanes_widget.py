"""The four lanes as a picture: what a cut, micro-batches, links and a slow device do."""

from collections.abc import Sequence

import matplotlib.pyplot as plt

from alkit.lab.viz import gantts
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from alkit.split.planner import Workload, times_at
from alkit.split.profile import Link, Unit
from alkit.split.schedule import LANES, split, split_sizes
from alkit.split.times import Times, iteration_s, lower_bound_s


def iteration(times: Times, sizes: list[int]) -> Timeline:
    """Return one iteration in virtual time, with a resource a lane."""
    seconds = seconds_of(times, sizes)
    found = simulate(split(len(sizes)), seconds.__getitem__, 1)
    names = {f"worker {at}": lane for at, lane in enumerate(LANES)}
    kept = (i for i in found.intervals if i.end_s > i.start_s)
    return Timeline.of((i._replace(resource=names[i.resource]) for i in kept), LANES)


def seconds_of(times: Times, sizes: Sequence[int]) -> dict[Task, float]:
    """Return the seconds of every task of batch 0, for the clock.

    The tail's forward has them all and its backward none: they follow each other at once.
    """
    found: dict[Task, float] = {Task("update", 0, 0): times.update}
    found[Task("update", 1, 0)] = times.server_update
    for at, size in enumerate(sizes):
        found[Task("forward", 0, 0, at)] = times.forward.at(size)
        found[Task("send", 0, 0, at)] = times.up.at(size)
        found[Task("forward", 1, 0, at)] = times.server.at(size)
        found[Task("backward", 1, 0, at)] = 0.0
        found[Task("send", 1, 0, at)] = times.down.at(size)
        found[Task("backward", 0, 0, at)] = times.backward.at(size)
    return found


def draw(
    units: Sequence[Unit],
    workload: Workload,
    *,
    cut: int = 1,
    micro: int = 4,
    up: float = 10.0,
    down: float = 25.0,
    slower: float = 10.0,
) -> tuple[Times, Timeline]:
    """Draw who works when in one iteration; return the lines of the lanes, and the iteration.

    Args:
        units: profile of the network on this machine, which plays the server.
        up, down: Mbit/s; slower: the device than this machine.
    """
    device, link = [unit.scaled(slower) for unit in units], Link(1e6 * up, 1e6 * down)
    times = times_at(device, units, link, workload, cut)
    sizes = split_sizes(workload.batch, micro, workload.least)
    one, now = iteration_s(times, [workload.batch]), iteration_s(times, sizes)
    print(
        f"An iteration takes {now:.3f} s with {len(sizes)} micro-batches and {one:.3f} s with one:"
        f" {one / now:.2f} times as fast. The busiest lane needs"
        f" {lower_bound_s(times, workload.batch):.3f} s."
    )
    found = iteration(times, sizes)
    title = f"Simulated: {len(sizes)} micro-batches, cut after unit {cut}"
    gantts({"one iteration": found}, title, number="micro")
    plt.show()
    return times, found
