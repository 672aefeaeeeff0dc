"""What free workers gain over any cut, on the clock: for every set of costs, and for many devices.

    ideal     max(all layers / workers, largest layer)        no schedule of whole layers is faster
    cut       the best cut's busiest worker
    free      what the clock takes when free workers take the layer with most work left

On several devices a layer that changes its worker takes its weights along. `moves` counts how often
that happens, and `worth_gbs` says how fast links must be for it to pay.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import ipywidgets as W
import matplotlib.pyplot as plt

from alkit.al.model import ALModel
from alkit.al.train import train_epoch
from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import schedule_for
from alkit.figures.titles import ratio, title
from alkit.figures.viz import colour
from alkit.schedule.clock import simulate
from alkit.schedule.costs import BlockCost, durations
from alkit.schedule.cuts import balanced_cuts
from alkit.schedule.task import Schedule, al_pipeline, free_workers
from alkit.schedule.timeline import Timeline
from studies.common.dashboards import Dashboard
from studies.common.stacks import Stack

__all__ = [
    "CostDashboard",
    "Steps",
    "backprop_steps",
    "costs_of",
    "label_share",
    "moves",
    "schedules",
    "steps",
    "worth_gbs",
]

BATCHES = 48  # simulated
SHARES = {"forward_s": 0.3, "backward_s": 0.6, "update_s": 0.1}  # of a layer's time, as AL's mostly


class Steps(NamedTuple):
    """Seconds of a batch, after fill; with `free`, of a whole run over its batches."""

    ideal: float
    cut: float
    free: float


def costs_of(seconds: Sequence[float]) -> list[BlockCost]:
    """Return layers that take so long, forward, backward and update in their usual shares."""
    return [BlockCost(**{name: share * s for name, share in SHARES.items()}) for s in seconds]


def steps(costs: Sequence[BlockCost], workers: int, batches: int = BATCHES) -> Steps:
    """Compare the bound, the best cut and free workers on layers of these costs."""
    seconds = [cost.seconds for cost in costs]
    cut, free = schedules(seconds, workers)
    ideal = max(sum(seconds) / workers, *seconds)
    whole = simulate(free, durations(costs), batches)
    return Steps(ideal, simulate(cut, durations(costs), batches).steady_s, whole.span_s / batches)


def schedules(seconds: Sequence[float], workers: int) -> tuple[Schedule, Schedule]:
    """Return the pipeline with the best cut, and the one of free workers."""
    layers = len(seconds)
    cuts = balanced_cuts(seconds, min(workers, layers))
    return al_pipeline(layers, cuts), free_workers(al_pipeline(layers), workers)


def moves(timeline: Timeline) -> float:
    """Return how often a batch a layer is run by another worker than its task before."""
    last: dict[int, str] = {}
    moved = 0
    for i in sorted(timeline.intervals, key=lambda i: i.start_s):
        moved += last.get(i.stage, i.resource) != i.resource
        last[i.stage] = i.resource
    return moved / (1 + max(i.batch for i in timeline.intervals))


def worth_gbs(costs: Sequence[BlockCost], workers: int, layer_bytes: int) -> float:
    """Return the gigabytes a second from which free devices are as fast as the best cut.

    Args:
        layer_bytes: what moves with a layer: weights, moments, and gradients if there are any.
    Returns:
        Infinity where free workers gain nothing.
    """
    found = steps(costs, workers)
    gained_s = found.cut - found.free
    free = schedules([cost.seconds for cost in costs], workers)[1]
    moved = moves(simulate(free, durations(costs), BATCHES)) * layer_bytes
    return moved / gained_s / 1e9 if gained_s > 0 else float("inf")


def backprop_steps(
    method: str, seconds: Sequence[float], workers: int, micro: int = 8
) -> tuple[float, int, float, int]:
    """Compare a pipeline of backprop with a stage a worker, and one with a stage a block, free.

    Returns:
        Seconds of a batch of a whole run, and staleness, of the cut one and of the free one.
    """
    bounds = [0, *balanced_cuts(seconds, workers), len(seconds)]
    grouped = [sum(seconds[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    parts = micro if METHODS[method].accumulates else 1
    cut = schedule_for(method, workers, parts)
    free = free_workers(schedule_for(method, len(seconds), parts), workers)
    shares = {"forward": 1 / 3 / parts, "backward": 2 / 3 / parts, "update": 0.0}

    def batch_s(schedule: Schedule, costs: Sequence[float]) -> float:
        line = simulate(schedule, lambda task: shares[task.kind] * costs[task.stage], BATCHES)
        return line.span_s / BATCHES

    return batch_s(cut, grouped), cut.staleness, batch_s(free, seconds), free.staleness


def label_share(stack: Stack) -> float:
    """Return the share of a layer's time that its label side takes, measured over all layers."""
    model = stack.model()
    assert isinstance(model, ALModel)
    batches = list(stack.stream())
    train_epoch(model, batches[:1], "al")
    whole_s, side_s = train_epoch(model, batches, "al").seconds, 0.0
    for _, y in batches:
        t = y
        for layer in model:
            start_s = time.perf_counter()
            code, decoded = layer.ae(t)
            layer.ae.loss(decoded, t).backward()
            layer.optimizers["ae"].step()
            side_s += time.perf_counter() - start_s
            t = code.detach()
    return side_s / whole_s


class CostDashboard(Dashboard):
    """Set what layers cost; see the step of the best cut beside that of free workers.

    Attributes:
        workers, layers: sliders, one a layer; `.value` may be set in code.
        found: the steps of now.
    """

    def __init__(self, seconds: Sequence[float] = (4.0, 3.2, 2.2, 1.5), workers: int = 2) -> None:
        self.workers = W.IntSlider(workers, 1, len(seconds), description="workers")
        self.layers = [
            W.FloatSlider(value, min=0.5, max=8.0, step=0.1, description=f"layer {at}")
            for at, value in enumerate(seconds)
        ]
        super().__init__([self.workers], self.layers[:3], self.layers[3:])

    def _redraw(self) -> None:
        costs = costs_of([layer.value for layer in self.layers])
        self.found = steps(costs, self.workers.value)
        gain = self.found.cut / self.found.free
        said = f"free {self.found.free:.2f} · best cut {self.found.cut:.2f}"
        self.report.value = f"<b class='alkit-ready'>a batch takes: {said}: {gain:.2f} times</b>"
        fig, ax = plt.subplots(figsize=(6.0, 1.6))
        bars = {"free workers": self.found.free, "best cut": self.found.cut}
        ax.barh(list(bars), list(bars.values()), color=[colour("al_pipeline"), "0.7"])
        ax.axvline(self.found.ideal, color="0.2", linestyle="--")
        ax.invert_yaxis()
        ax.set(xlabel="time of a batch; dashed: no schedule is faster")
        gap = ratio(self.found.cut, self.found.free)
        title(ax, "Simulated: this cut takes {gap:.2f} of free workers' time", gap=gap)
        self._show(fig)
