"""Dashboards as objects: set a slider's value in code, or move it; both redraw.

State is plain values, so a notebook can drive a dashboard and assert what it shows, also in batch.
"""

import io

import ipywidgets as W
import matplotlib.pyplot as plt

from alkit.clock import simulate
from alkit.partition import balanced_cuts
from alkit.schedule import Schedule, al, al_fm, al_m, al_pipeline
from alkit.timeline import Timeline
from alkit.viz import gantts, label

__all__ = ["ScheduleDashboard"]

BATCHES = 6


class ScheduleDashboard:
    """Choose layers, workers and the cost of F, B, U; see the four schedules in virtual time.

    Attributes:
        layers, workers, f, b, u: sliders; `.value` may be set in code.
        timelines: by mode, simulated, of 6 batches.
    """

    def __init__(
        self, layers: int = 4, workers: int = 4, f: float = 1.0, b: float = 2.0, u: float = 0.3
    ) -> None:
        self.layers = W.IntSlider(layers, 1, 8, description="layers")
        self.workers = W.IntSlider(workers, 1, 8, description="workers")
        self.f = _cost(f, "forward")
        self.b = _cost(b, "backward")
        self.u = _cost(u, "update")
        self.picture = W.Image(format="png", layout=W.Layout(max_width="800px"))
        self.report = W.HTML()
        self.timelines: dict[str, Timeline] = {}
        controls = (self.layers, self.workers, self.f, self.b, self.u)
        for control in controls:
            control.observe(self._redraw, "value")
        self.view = W.VBox([W.HBox(controls[:2]), W.HBox(controls[2:]), self.report, self.picture])
        self._redraw()

    def step_s(self, mode: str) -> float:
        """Return the time of a batch after fill."""
        return self.timelines[mode].step_s

    def _redraw(self, change: object = None) -> None:
        costs = {"forward": self.f.value, "backward": self.b.value, "update": self.u.value}
        self.timelines = {
            schedule.name: simulate(schedule, lambda task: costs[task.kind], BATCHES)
            for schedule in self._schedules()
        }
        times = " · ".join(f"{label(mode)} {self.step_s(mode):.1f}" for mode in self.timelines)
        self.report.value = f"<b class='alkit-ready'>step time: {times}</b>"
        self.picture.value = self._drawn()

    def _schedules(self) -> list[Schedule]:
        """The schedules with at most so many workers, layers balanced among them."""
        layers, workers = self.layers.value, self.workers.value
        cuts = balanced_cuts([1.0] * layers, min(workers, layers))
        schedules = [al(layers), al_pipeline(layers, cuts)]
        if workers >= 2:
            several = min(workers, layers + 1)
            schedules[1:1] = [al_m(layers, several), al_fm(layers, several)]
        return schedules

    def _drawn(self) -> bytes:
        titles = {
            f"{label(mode)}: a step takes {timeline.step_s:.1f}": timeline
            for mode, timeline in self.timelines.items()
        }
        fig = gantts(titles, f"{BATCHES} batches in virtual time")
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=90)
        plt.close(fig)
        return buffer.getvalue()


def _cost(value: float, name: str) -> W.FloatSlider:
    return W.FloatSlider(value, min=0.1, max=4.0, step=0.1, description=name)
