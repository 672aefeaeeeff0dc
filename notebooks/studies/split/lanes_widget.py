"""A dashboard of the four lanes: what a cut, micro-batches, links and a slow device do."""

from collections.abc import Sequence

import ipywidgets as W

from alkit.lab.viz import gantts
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from alkit.split.planner import Workload, times_at
from alkit.split.profile import Link, Unit
from alkit.split.schedule import LANES, split, split_sizes
from alkit.split.times import Times, iteration_s, lower_bound_s
from studies.common.dashboards import Dashboard


def iteration(times: Times, sizes: list[int], *, returns: bool = True) -> Timeline:
    """Return one iteration in virtual time, with a resource a lane."""
    seconds = seconds_of(times, sizes, returns)
    found = simulate(split(len(sizes), returns=returns), seconds.__getitem__, 1)
    names = {f"worker {at}": lane for at, lane in enumerate(LANES)}
    kept = (i for i in found.intervals if i.end_s > i.start_s)
    return Timeline.of((i._replace(resource=names[i.resource]) for i in kept), LANES)


def seconds_of(times: Times, sizes: Sequence[int], returns: bool = True) -> dict[Task, float]:
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
        if returns:
            found[Task("send", 1, 0, at)] = times.down.at(size)
            found[Task("backward", 0, 0, at)] = times.backward.at(size)
    return found


class LaneDashboard(Dashboard):
    """Choose cut, micro-batches, links and the device's speed; see who works when.

    Args:
        units: profile of the network on this machine, which plays the server.

    Attributes:
        cut, micro, up, down, slower: sliders. `.value` may be set in code.
        timeline: of one iteration, in virtual time.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        workload: Workload,
        *,
        cut: int = 1,
        up: float = 10.0,
        down: float = 25.0,
    ) -> None:
        self.units, self.workload = units, workload
        self.cut = W.IntSlider(cut, 1, len(units) - 1, description="cut")
        self.micro = W.IntSlider(
            4, 1, min(20, workload.batch // workload.least), description="micro"
        )
        self.up, self.down = (
            W.FloatLogSlider(value, min=0, max=3, step=0.1, description=f"{name} Mbit/s")
            for value, name in ((up, "up"), (down, "down"))
        )
        self.slower = W.FloatLogSlider(10.0, min=0, max=2, step=0.1, description="device slower")
        self.timeline = Timeline((), ())
        super().__init__([self.cut, self.micro, self.slower], [self.up, self.down])

    @property
    def times(self) -> Times:
        """The lines of what is chosen."""
        link = Link(1e6 * self.up.value, 1e6 * self.down.value)
        device = [unit.scaled(self.slower.value) for unit in self.units]
        return times_at(device, self.units, link, self.workload, self.cut.value)

    def _redraw(self) -> None:
        times, batch = self.times, self.workload.batch
        sizes = split_sizes(batch, self.micro.value, self.workload.least)
        one, now = iteration_s(times, [batch]), iteration_s(times, sizes)
        self.timeline = iteration(times, sizes)
        self.report.value = (
            f"<p class='alkit-ready'>An iteration takes {now:.3f} s with {len(sizes)}"
            f" micro-batches and {one:.3f} s with one: {one / now:.2f} times as fast. The busiest"
            f" lane alone needs {lower_bound_s(times, batch):.3f} s.</p>"
        )
        title = f"Simulated: {len(sizes)} micro-batches, cut after unit {self.cut.value}"
        self._show(gantts({"one iteration": self.timeline}, title, number="micro"))
