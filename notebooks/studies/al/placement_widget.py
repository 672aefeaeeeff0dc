"""A dashboard of placements: which device should hold which layer, under which schedule?"""

from collections.abc import Callable

import ipywidgets as W
from matplotlib.figure import Figure

from alkit.figures.viz import gantts, label
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import gpipe, one_f_one_b, zero_bubble
from alkit.schedule.task import Schedule, Task, al, al_fm, al_m, al_pipeline
from alkit.schedule.timeline import Timeline
from studies.al import placement
from studies.al.one_process import ALL_KINDS, by_device, one_process
from studies.al.placement import Placement
from studies.common.dashboards import Dashboard

__all__ = ["PlacementDashboard", "peak_kept"]

MICRO = 4  # micro-batches of the pipelines of backprop
SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "al": al,
    "al_m": al_m,
    "al_fm": al_fm,
    "al_pipeline": al_pipeline,
    "gpipe": lambda layers: gpipe(layers, MICRO),
    "1f1b": lambda layers: one_f_one_b(layers, MICRO),
    "zero_bubble": lambda layers: zero_bubble(layers, MICRO),
}
FLUSHED = ("gpipe", "1f1b", "zero_bubble")
BATCHES, SHOWN = 18, 3  # simulated; in the picture
EVERY = 300  # placements that are all tried for the best one; of more, neighbours


class PlacementDashboard(Dashboard):
    """Choose schedule, layers, devices and costs; compare contiguous, round robin and best.

    A layer's tasks need its device, first come first served; layers have a thread each.

    Attributes:
        schedule: menu; layers, devices, f, b, u: sliders. `.value` may be set in code.
        placements: by name, the device of every layer.
        timelines: by name of a placement, a row a device.
    """

    def __init__(
        self, layers: int = 8, devices: int = 4, f: float = 1.0, b: float = 2.0, u: float = 0.5
    ) -> None:
        options = [(label(name), name) for name in SCHEDULES]
        self.schedule = W.Dropdown(options=options, value="al_pipeline", description="schedule")
        self.layers = W.IntSlider(layers, 1, 12, description="layers")
        self.devices = W.IntSlider(devices, 1, 8, description="devices")
        self.f, self.b, self.u = (
            W.FloatSlider(value, min=0.1, max=4.0, step=0.1, description=name)
            for value, name in ((f, "forward"), (b, "backward"), (u, "update"))
        )
        self.placements: dict[str, Placement] = {}
        self.timelines: dict[str, Timeline] = {}
        super().__init__([self.schedule, self.layers, self.devices], [self.f, self.b, self.u])

    def step_s(self, name: str) -> float:
        """Return the time of a batch after fill under the placement of that name."""
        return _middle_s(self.timelines[name])

    def kept(self, name: str) -> float:
        """Return the most layers' activations of a whole batch that a device keeps at a time."""
        return max(peak_kept(self.timelines[name], self._micro()).values())

    def _redraw(self) -> None:
        layers, devices = self.layers.value, self.devices.value
        best, _ = placement.best(lambda p: _middle_s(self._timeline(p)), layers, devices, EVERY)
        self.placements = {
            "contiguous": placement.contiguous(layers, devices),
            "round_robin": placement.round_robin(layers, devices),
            "best": best,
        }
        self.timelines = {name: self._timeline(own) for name, own in self.placements.items()}
        lines = "".join(map(self._line, self.placements))
        heads = "".join(f"<th>{head}</th>" for head in ("", "step", "idle", "kept", "devices"))
        self.report.value = f"<table class='alkit-ready'><tr>{heads}</tr>{lines}</table>"
        self._show(self._drawn())

    def _line(self, name: str) -> str:
        timeline = self.timelines[name]
        places = " ".join(map(str, self.placements[name]))
        step, idle, kept = _middle_s(timeline), 100 * timeline.bubble, self.kept(name)
        cells = (name.replace("_", " "), f"{step:.1f}", f"{idle:.0f} %", f"{kept:.1f}", places)
        return (
            "<tr>" + "".join(f"<td style='padding:0 8px'>{cell}</td>" for cell in cells) + "</tr>"
        )

    def _timeline(self, own: Placement) -> Timeline:
        schedule = SCHEDULES[self.schedule.value](self.layers.value)
        machine = one_process(schedule, own, ALL_KINDS)
        return by_device(simulate(schedule, self._seconds, BATCHES, machine=machine), own)

    def _seconds(self, task: Task) -> float:
        costs = {"forward": self.f.value, "backward": self.b.value, "update": self.u.value}
        if task.kind.startswith("backward_"):
            return costs["backward"] / 2 / self._micro()
        return costs[task.kind] / (1 if task.kind == "update" else self._micro())

    def _micro(self) -> int:
        return MICRO if self.schedule.value in FLUSHED else 1

    def _drawn(self) -> Figure:
        names = {each: each.replace("_", " ") for each in self.timelines} | {"best": "searched"}
        shown = {
            f"{names[each]}: {_middle_s(line):.1f} per step": line.between(0, SHOWN - 1)
            for each, line in self.timelines.items()
        }
        words = "Simulated: {n} batches of {schedule}"
        return gantts(shown, words, n=str(SHOWN), schedule=label(self.schedule.value))


def _middle_s(timeline: Timeline) -> float:
    """Return the time of a batch in the middle third: neither fill nor drain."""
    ends, third = timeline.batch_ends_s, BATCHES // 3
    return (ends[2 * third] - ends[third]) / third


def peak_kept(timeline: Timeline, micro: int = 1) -> dict[str, float]:
    """Return for each resource the most activations that wait for their backward at a time.

    Counted in layers of a whole batch, from the end of a forward to the end of the backward.

    Args:
        micro: micro-batches a batch; each counts as its part.
    """
    last = {"backward", "backward_weight"}
    events: dict[str, list[tuple[float, int]]] = {name: [] for name in timeline.resources}
    for i in timeline.intervals:
        change = (i.kind == "forward") - (i.kind in last)
        if change:
            events[i.resource].append((i.end_s, change))
    peaks = {}
    for name, changes in events.items():
        held = peak = 0
        for _, change in sorted(changes):  # at the same moment, what goes goes first
            held += change
            peak = max(peak, held)
        peaks[name] = peak / micro
    return peaks
