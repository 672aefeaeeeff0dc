"""A dashboard of schedules: what the methods do with K modules and a given forward to backward."""

import ipywidgets as W

from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import schedule_for
from alkit.lab.viz import gantts, label
from alkit.schedule.clock import simulate
from alkit.schedule.timeline import Timeline
from studies.common.dashboards import Dashboard
from studies.delayed.durations import durations
from studies.delayed.tables import staleness

SHOWN = [name for name, method in METHODS.items() if not method.accumulates]
BATCHES = 6  # in the picture
LONG = 40  # for the cycle


class ScheduleDashboard(Dashboard):
    """Choose a method, modules and times; see who is busy when, the cycle and the staleness.

    Attributes:
        method: menu; modules, forward, backward: sliders. `.value` may be set in code.
        timeline: of the first batches, in virtual time.
    """

    def __init__(
        self,
        method: str = "pipedream",
        modules: int = 4,
        forward: float = 1.0,
        backward: float = 2.0,
    ) -> None:
        names = [(label(name), name) for name in SHOWN]
        self.method = W.Dropdown(options=names, value=method, description="method")
        self.modules = W.IntSlider(modules, 1, 8, description="modules")
        self.forward, self.backward = (
            W.FloatSlider(value, min=0.5, max=4.0, step=0.5, description=name)
            for value, name in ((forward, "forward"), (backward, "backward"))
        )
        self.timeline = Timeline((), ())
        super().__init__([self.method, self.modules], [self.forward, self.backward])

    @property
    def cycle_s(self) -> float:
        """The time of a batch once the pipeline is full."""
        spans = [self._simulated(count).span_s for count in (LONG, 2 * LONG)]
        return (spans[1] - spans[0]) / LONG

    def _redraw(self) -> None:
        self.timeline = self._simulated(BATCHES)
        modules = self.modules.value
        alone = modules * (self.forward.value + self.backward.value)
        late = staleness(self.method.value, modules, modules + 8)
        self.report.value = (
            f"<p class='alkit-ready'>A batch takes {self.cycle_s:g} once the pipeline is full,"
            f" {alone / self.cycle_s:.2f} times as fast as <i>seq</i> ({alone:g}). Updates that"
            f" module 0's weights lack: {late.forward.iloc[0]} in the forward,"
            f" {late.backward.iloc[0]} in the backward.</p>"
        )
        title = f"Simulated: {BATCHES} batches of {label(self.method.value)}"
        self._show(gantts({f"{modules} modules": self.timeline}, title, number="batch"))

    def _simulated(self, batches: int) -> Timeline:
        name, modules = self.method.value, self.modules.value
        seconds = durations(name, modules, self.forward.value, self.backward.value)
        return simulate(schedule_for(name, modules), seconds, batches)
