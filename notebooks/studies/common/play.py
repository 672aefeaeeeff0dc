"""Controls that draw anew when one moves. What they draw is a function of their values, so a cell
may call it, too, and a page without a kernel shows a still of it.
"""

import base64
import html
from functools import partial
from typing import Any

import ipywidgets as W
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from IPython.utils.capture import capture_output
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.base import tree
from alkit.data.parts import DataSet
from alkit.engine.costs import balanced_cuts
from alkit.lab.viz import colour, gantts, label
from alkit.schedule.clock import simulate
from alkit.schedule.task import al, al_fm, al_m, al_pipeline
from alkit.schedule.timeline import Timeline
from studies.al import exits

BATCHES = 6


class Play(W.interactive):
    """A function of its controls: `Play(draw, layers=(1, 8), cost=(0.1, 4.0))`, see `interact`."""

    def __init__(self, draw: Any, **controls: Any) -> None:
        if isinstance(draw, partial):
            draw.__name__ = draw.func.__name__  # type: ignore[attr-defined]
        super().__init__(draw, **controls)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widget, and for readers without a kernel what it shows now."""
        values = {each._kwarg: each.value for each in self.kwargs_widgets}
        with capture_output() as found:
            self.f(**values)
        data = [each.data for each in found.outputs]
        pictures = [own["image/png"] for own in data if "image/png" in own]
        texts = [t if isinstance(t, str) else base64.b64encode(t).decode() for t in pictures]
        said = f"A still, the controls need a kernel. {found.stdout.strip()}"
        shown = [f'<img src="data:image/png;base64,{text.strip()}">' for text in texts]
        shown += [own["text/html"] for own in data if "text/html" in own]
        page = f"<p>{html.escape(said)}</p>{''.join(shown)}"
        return super()._repr_mimebundle_(**options) | {"text/html": page, "text/plain": said}


def draw_al(
    layers: int = 4, workers: int = 4, f: float = 1.0, b: float = 2.0, u: float = 0.3
) -> dict[str, Timeline]:
    """Draw AL's schedules of at most so many workers in virtual time; return them by mode."""
    several = min(workers, layers + 1)
    plans = [al(layers), al_pipeline(layers, balanced_cuts([1.0] * layers, min(workers, layers)))]
    plans[1:1] = [al_m(layers, several), al_fm(layers, several)] if workers > 1 else []
    costs = {"forward": f, "backward": b, "update": u}
    lines = {plan.name: simulate(plan, lambda task: costs[task.kind], BATCHES) for plan in plans}
    shown = {f"{label(mode)}: {line.step_s:.1f} per step": line for mode, line in lines.items()}
    gantts(shown, f"Simulated: {BATCHES} batches by each schedule")
    plt.show()
    return lines


def draw_sample(model: Any, data: DataSet, sample: int = 0) -> list[int]:
    """Show a test sample and the scores of every exit; return the classes that they say."""
    x, y = next(iter(data.test.batches(sample + 1, shuffle=False)))
    one, name = tree.map_tensors(lambda own: own[sample:], x), data.class_names
    depths = [None] if isinstance(model, BPModel) else range(1, len(model) + 1)
    tops = [model.predict(one, depth).softmax(1).max(1) for depth in depths]
    if data.train.is_text:
        print(" ".join(data.vocabulary[token] for token in one[0][0].tolist() if token))
    else:
        _, ax = plt.subplots(figsize=(1.6, 1.6))
        low, high = one.min(), one.max()
        ax.imshow(((one[0] - low) / (high - low)).permute(1, 2, 0), cmap="gray")
        ax.axis("off")
        plt.show()
    rows = [(name[int(top.indices)], float(top.values)) for top in tops]
    table = pd.DataFrame(rows, columns=["class", "probability"]).rename_axis("exit")
    display(table.set_axis(range(1, len(rows) + 1)).round(2))
    print("its class:", name[int(y[sample])])
    return [int(top.indices) for top in tops]


def draw_exits(scores_LNC: Tensor, labels_N: Tensor, costs_L: Any, threshold: float = 0.3) -> Any:
    """Draw where samples leave, and what it saves; return `studies.al.exits.Leaving`."""
    curve = exits.sweep(scores_LNC, labels_N, costs_L, [step / 20 for step in range(21)])
    left = exits.leave(scores_LNC, labels_N, costs_L, threshold)
    fig, (line, bars) = plt.subplots(1, 2, figsize=(8.0, 2.8))
    line.plot(100 * curve.cost, 100 * curve.accuracy, color=colour("al"))
    line.plot(100 * left.cost, 100 * left.accuracy, "o", color="0.2")
    line.set(xlabel="cost, % of the last exit alone", ylabel="accuracy, %", title="All thresholds")
    counts = left.counts(len(scores_LNC))
    bars.bar(range(1, len(counts) + 1), counts, color=colour("al"))
    bars.set(xlabel="exit", ylabel="samples", title="Where samples leave")
    bars.set_xticks(range(1, len(counts) + 1))
    fig.suptitle(f"Accuracy {100 * left.accuracy:.1f} % at {100 * left.cost:.0f} % of the cost")
    plt.show()
    return left
