"""Dashboards as objects: set a slider's value in code, or move it; both redraw.

State is plain values, so a notebook can drive a dashboard and assert what it shows, also in batch.
A cell that ends in a dashboard, or in its view, shows it; a page without a kernel shows a still:

    cell output ──┬── widget view    JupyterLab; exports that hold the widgets' saved state
                  ├── HTML           the site, other exports: settings, words, picture
                  └── plain text     the rest: settings, words
"""

import base64
import html
import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as W
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.base import tree
from alkit.data.parts import DataSet
from alkit.engine.costs import balanced_cuts
from alkit.lab.viz import SHOWN_DPI, colour, gantts, label, png
from alkit.schedule.clock import simulate
from alkit.schedule.task import Schedule, al, al_fm, al_m, al_pipeline
from alkit.schedule.timeline import Timeline
from studies.al import exits

BATCHES = 6
SAMPLE_WIDTH = 160  # of an image, in points of the screen


class _View(W.VBox):
    """Widgets below each other; a cell's output holds their still, too."""

    def __init__(self, children: Sequence[W.Widget], stills: Callable[[], dict[str, str]]) -> None:
        super().__init__(children)
        self.stills = stills

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return super()._repr_mimebundle_(**kwargs) | self.stills()


class Dashboard:
    """Rows of controls, above words and a picture of them; every change of a `.value` redraws.

    Attributes:
        view: what a cell shows that ends in it, or in the dashboard.
    """

    def __init__(self, *rows: Sequence[W.ValueWidget]) -> None:
        self.report = W.HTML()
        self.picture = W.Image(format="png")
        self.controls = [*itertools.chain(*rows)]
        for control in self.controls:
            control.observe(lambda change: self._redraw(), "value")
        self.view = _View([*map(W.HBox, rows), self.report, self.picture], self._stills)
        self._redraw()

    def _redraw(self) -> None:
        raise NotImplementedError("a dashboard says what its controls show")

    def _show(self, fig: Figure) -> None:
        """Put a figure in the picture's place; its size on the screen is its own, in inches."""
        self._show_pixels(png(fig), round(SHOWN_DPI * fig.get_figwidth()))

    def _show_pixels(self, data: bytes, width: int) -> None:
        """Show a PNG so many points wide; it has two pixels a point, for dense screens."""
        self.picture.width, self.picture.value = str(width), data

    @property
    def still(self) -> str:
        """What is shown now as HTML, for readers without a kernel: settings, words, picture."""
        picture = ""
        if self.picture.value:
            data = base64.b64encode(self.picture.value).decode()
            picture = (
                f'<img width="{self.picture.width}" alt="{html.escape(self._words())}"'
                f' src="data:image/png;base64,{data}">'
            )
        return f"<p>{html.escape(self._settings())}</p>{self.report.value}{picture}"

    def _stills(self) -> dict[str, str]:
        return {"text/html": self.still, "text/plain": f"{self._settings()} {self._words()}"}

    def _settings(self) -> str:
        settings = ", ".join(f"{each.description} {_set_to(each)}" for each in self.controls)
        return f"A still, at {settings}: the controls need a kernel."

    def _words(self) -> str:
        return " ".join(html.unescape(re.sub("<[^>]*>", " ", self.report.value)).split())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return self.view._repr_mimebundle_(**kwargs)


class ScheduleDashboard(Dashboard):
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
        self.timelines: dict[str, Timeline] = {}
        super().__init__([self.layers, self.workers], [self.f, self.b, self.u])

    def step_s(self, mode: str) -> float:
        """Return the time of a batch after fill."""
        return self.timelines[mode].step_s

    def _redraw(self) -> None:
        costs = {"forward": self.f.value, "backward": self.b.value, "update": self.u.value}
        self.timelines = {
            schedule.name: simulate(schedule, lambda task: costs[task.kind], BATCHES)
            for schedule in self._schedules()
        }
        times = " · ".join(f"{label(mode)} {self.step_s(mode):.1f}" for mode in self.timelines)
        self.report.value = f"<b class='alkit-ready'>step time: {times}</b>"
        self._show(self._drawn())

    def _schedules(self) -> list[Schedule]:
        """The schedules with at most so many workers, layers balanced among them."""
        layers, workers = self.layers.value, self.workers.value
        cuts = balanced_cuts([1.0] * layers, min(workers, layers))
        schedules = [al(layers), al_pipeline(layers, cuts)]
        if workers >= 2:
            several = min(workers, layers + 1)
            schedules[1:1] = [al_m(layers, several), al_fm(layers, several)]
        return schedules

    def _drawn(self) -> Figure:
        shown = {
            f"{label(mode)}: {timeline.step_s:.1f} per step": timeline
            for mode, timeline in self.timelines.items()
        }
        return gantts(shown, f"Simulated: {BATCHES} batches by each schedule")


class SampleExits(Dashboard):
    """Choose a test sample; see what the network says after each block.

    Attributes:
        sample: slider, the number of the sample in the test part.
        guesses: (class, probability) at every exit; of a BP model the one it has.
    """

    def __init__(self, model: ALModel | BPModel, data: DataSet, samples: int = 100) -> None:
        self.model, self.data = model, data
        last = min(samples, len(data.test)) - 1
        self.inputs = next(iter(data.test.batches(last + 1, shuffle=False)))
        self.sample = W.IntSlider(0, 0, last, description="sample")
        self.guesses: list[tuple[int, float]] = []
        super().__init__([self.sample])
        parts = [self.report] if data.train.is_text else [self.picture, self.report]
        self.view.children = [self.sample, W.HBox(parts)]

    def _redraw(self) -> None:
        x, y = self.inputs
        at = slice(self.sample.value, self.sample.value + 1)
        one = tree.map_tensors(lambda tensor: tensor[at], x)
        self.guesses = [self._guess(scores) for scores in self._scores(one)]
        truth = int(y[self.sample.value])
        rows = [self._row(number, guess, truth) for number, guess in enumerate(self.guesses, 1)]
        shown = self._text(one) if self.data.train.is_text else ""
        self.report.value = (
            f"<div class='alkit-ready'>{shown}<b>{self._name(truth)}</b>"
            f"<table>{''.join(rows)}</table></div>"
        )
        if not self.data.train.is_text:
            self._show_pixels(*_picture(one[0]))

    def _scores(self, one: Any) -> list[Tensor]:
        if isinstance(self.model, BPModel):
            return [self.model.predict(one)]
        return [self.model.predict(one, depth) for depth in range(1, len(self.model) + 1)]

    def _guess(self, scores: Tensor) -> tuple[int, float]:
        top = scores.softmax(1).max(1)
        return int(top.indices), float(top.values)

    def _row(self, number: int, guess: tuple[int, float], truth: int) -> str:
        mark = "✓" if guess[0] == truth else "✗"
        name = self._name(guess[0])
        return f"<tr><td>exit {number}</td><td>{mark} {name}</td><td>{guess[1]:.2f}</td></tr>"

    def _name(self, number: int) -> str:
        return html.escape(self.data.class_names[number])

    def _text(self, one: Any) -> str:
        tokens = one[0][0].tolist()
        own = [token for token in tokens if token]
        words = " ".join(self.data.vocabulary[token] for token in own)
        return f"<p style='max-width:600px'>{html.escape(words)}</p>"


class ExitDashboard(Dashboard):
    """Choose how sure an exit must be; see where samples leave, and what it saves.

    Attributes:
        threshold: slider, share of the largest entropy below which a sample leaves.
        left: `studies.al.exits.Leaving` at that threshold.
    """

    def __init__(self, scores_LNC: Tensor, labels_N: Tensor, costs_L: Sequence[float]) -> None:
        self.scores, self.labels, self.costs = scores_LNC, labels_N, costs_L
        thresholds = [step / 20 for step in range(21)]
        self.curve = exits.sweep(scores_LNC, labels_N, costs_L, thresholds)
        self.threshold = W.FloatSlider(0.3, min=0.0, max=1.0, step=0.05, description="entropy <")
        super().__init__([self.threshold])

    def _redraw(self) -> None:
        at = self.threshold.value
        self.left = exits.leave(self.scores, self.labels, self.costs, at)
        self.report.value = (
            f"<b class='alkit-ready'>accuracy {100 * self.left.accuracy:.1f} %,"
            f" cost {100 * self.left.cost:.0f} % of the last exit's</b>"
        )
        self._show(self._drawn())

    def _drawn(self) -> Figure:
        fig, (curve, bars) = plt.subplots(1, 2, figsize=(8.0, 2.8))
        curve.plot(100 * self.curve.cost, 100 * self.curve.accuracy, color=colour("al"))
        curve.plot(100 * self.left.cost, 100 * self.left.accuracy, "o", color="0.2")
        curve.set(xlabel="cost, % of the last exit's alone", ylabel="accuracy, %")
        curve.set_title("All thresholds")
        counts = self.left.counts(len(self.scores))
        bars.bar(range(1, len(counts) + 1), counts, color=colour("al"))
        bars.set(xlabel="exit", ylabel="samples")
        bars.set_title("Where samples leave")
        bars.set_xticks(range(1, len(counts) + 1))
        return fig


def _picture(image_CHW: Tensor) -> tuple[bytes, int]:
    """Draw an image of any scale, stretched to its own darkest and lightest point.

    Returns:
        a PNG, and its width on the screen: about 160 points, squares of pixels to a pixel.
    """
    low, high = image_CHW.min(), image_CHW.max()
    pixels = ((image_CHW - low) / (high - low).clamp(min=1e-6)).permute(1, 2, 0).numpy()
    each = max(1, SAMPLE_WIDTH // pixels.shape[1])  # points a pixel; of the PNG, twice as many
    squares = pixels.repeat(3 // pixels.shape[2], 2).repeat(2 * each, 0).repeat(2 * each, 1)
    buffer = io.BytesIO()
    plt.imsave(buffer, squares, format="png")
    return buffer.getvalue(), each * pixels.shape[1]


def _cost(value: float, name: str) -> W.FloatSlider:
    return W.FloatSlider(value, min=0.1, max=4.0, step=0.1, description=name)


def _set_to(control: W.ValueWidget) -> str:
    """Return a control's value as its reader sees it: a menu's is a label."""
    value = getattr(control, "label", control.value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
