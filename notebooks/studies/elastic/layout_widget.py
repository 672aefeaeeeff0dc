"""A dashboard of elastic layouts: what freezing does to stages, replicas and speed."""

import ipywidgets as W
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alkit.elastic.freeze import policy
from alkit.lab.viz import colour
from studies.common.dashboards import Dashboard
from studies.elastic.other_machines import what_if


class ElasticDashboard(Dashboard):
    """Choose alpha, devices and stages; see layouts and speed of every epoch.

    Attributes:
        alpha, devices, stages: menus and sliders; pipe, dp, cache: switches. `.value` may be set
            in code.
        table: what is drawn, see `studies.elastic.other_machines.what_if`.
        gain: how many times as fast as the same without freezing.
    """

    def __init__(self, alpha: float = 1 / 3, devices: int = 16, stages: int = 8) -> None:
        self.alpha = W.FloatSlider(alpha, min=0.05, max=0.95, step=0.05, description="alpha")
        self.devices = W.Dropdown(options=[8, 16, 32, 64], value=devices, description="devices")
        self.stages = W.Dropdown(options=[1, 2, 4, 8], value=stages, description="stages")
        self.pipe, self.dp, self.cache = (
            W.Checkbox(value=True, description=name) for name in ("pipe", "dp", "cache")
        )
        self.table, self.gain = pd.DataFrame(), 1.0
        sliders, switches = (
            (self.alpha, self.devices, self.stages),
            (self.pipe, self.dp, self.cache),
        )
        super().__init__(sliders, switches)

    def _redraw(self) -> None:
        names = ("pipe", "dp", "cache")
        switches = {name: getattr(self, name).value for name in names}
        options = {"devices": self.devices.value, "stages": self.stages.value}
        self.table = what_if(policy("schedule", alpha=self.alpha.value), **switches, **options)
        still = what_if(policy("none"), **dict.fromkeys(names, False), **options)
        seconds = (1 / still.samples_per_s).sum(), (1 / self.table.samples_per_s).sum()
        self.gain = seconds[0] / seconds[1]
        last = self.table.iloc[-1]
        self.report.value = (
            f"<p class='alkit-ready'>Calculated, not measured: {self.gain:.2f} times as fast as"
            f" {self.stages.value} stages without freezing. At the end {last.frozen} of 12 layers"
            f" are frozen, and {last.replicas} replicas of {last.stages} stages take"
            f" {last.batch:,} samples per step.</p>"
        )
        self._show(picture(self.table, f"Calculated, alpha {self.alpha.value:.2f}"))


def picture(table: pd.DataFrame, how: str) -> Figure:
    """Draw layouts over epochs: stages and replicas, frozen layers, samples per second.

    Args:
        how: the title begins with it; it ends with the speed of the epoch in which half of what
            freezes is frozen.
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.0))
    left.step(table.epoch, table.stages, where="mid", color="0.35", label="stages")
    left.step(table.epoch, table.replicas, where="mid", color=colour("elastic"), label="replicas")
    left.plot(table.epoch, table.frozen, "o:", color="0.6", ms=3, label="frozen layers")
    left.set(xlabel="epoch", ylabel="number")
    left.set_title("Layout")
    left.legend(frameon=False, fontsize=8)
    right.bar(table.epoch, table.samples_per_s, color=colour("elastic"))
    right.set(xlabel="epoch", ylabel="samples per second")
    right.set_title("Speed")
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    half = table[2 * table.frozen >= table.frozen.max()].iloc[0]
    gain = half.samples_per_s / table.samples_per_s.iloc[0]
    title = f"{how}: with {half.frozen:.0f} layers frozen {gain:.1f} times as fast"
    fig.suptitle(title, x=0.01, ha="left", wrap=True)
    return fig
