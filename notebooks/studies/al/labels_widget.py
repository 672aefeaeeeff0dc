"""A dashboard of label autoencoders: when does one sit at the constant prediction?"""

import html
from collections.abc import Mapping

import ipywidgets as W
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alkit.al.label_side import TOLERANCE
from alkit.figures.viz import WIDE, colour
from studies.al.label_training import Variant, levels_of, milestones, train_labels
from studies.common.dashboards import Dashboard

LEVELS = 4


class LabelPlateau(Dashboard):
    """Choose a number of classes and a variant; see its first autoencoder train, and its codes.

    Args:
        variants: what the menu offers, by name.
        code_dim, epochs, steps, batch_size: of the short training; at the variant's constant rate.

    Attributes:
        classes, variant: slider and menu; `.value` may be set in code.
        constant: the loss of the best constant prediction.
        spreads: sd over the classes of the codes before training, of levels 1 to 4.
        history: the epochs of level 1, as from `studies.al.label_training.train_labels`.
        escape: the epoch from which on it is off the constant, or None.
    """

    def __init__(
        self,
        variants: Mapping[str, Variant],
        classes: int = 20,
        *,
        code_dim: int = 128,
        epochs: int = 12,
        steps: int = 50,
        batch_size: int = 64,
    ) -> None:
        self.variants, self.code_dim = dict(variants), code_dim
        self.settings = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
        self.classes = W.IntSlider(classes, 2, 200, description="classes", continuous_update=False)
        self.variant = W.Dropdown(options=list(self.variants), description="variant")
        self.constant = float("nan")
        self.spreads: list[float] = []
        self.history = pd.DataFrame()
        self.escape: int | None = None
        super().__init__([self.classes, self.variant])

    @property
    def stalled(self) -> bool:
        """Say whether it does no better than the constant when the short training ends."""
        return self.escape is None

    def _redraw(self) -> None:
        classes, variant = self.classes.value, self.variants[self.variant.value]
        # what a level is given is the code of the level below
        ladder = levels_of(variant.build(classes, self.code_dim, levels=LEVELS + 1), classes)
        self.spreads = [level.spread for level in ladder[1:]]
        self.history = train_labels(
            variant.build(classes, self.code_dim, levels=1), classes, lr=variant.lr, **self.settings
        )
        self.constant = float(self.history.constant.iloc[-1])
        escape = milestones(self.history).escape.iloc[0]
        self.escape = None if pd.isna(escape) else int(escape)
        self.report.value = f"<b class='alkit-ready'>{html.escape(self._said())}</b>"
        self._show(self._drawn())

    def _said(self) -> str:
        trained = len(self.history)
        what = f"{self.classes.value} classes, {self.variant.value}: constant {self.constant:.4f}, "
        if self.stalled:
            return what + f"not below it after {trained} epochs of {self.settings['steps']} steps"
        return what + f"below it for good from epoch {self.escape} on"

    def _drawn(self) -> Figure:
        fig, (left, right) = plt.subplots(1, 2, figsize=WIDE)
        self._draw_losses(left)
        numbers = range(1, LEVELS + 1)
        right.bar(numbers, self.spreads, color=colour("al"))
        right.set(xlabel="level", yscale="log", ylim=(1e-6, 1), xticks=numbers)
        right.set_title("Spread of the codes before training")
        return fig

    def _draw_losses(self, ax: Axes) -> None:
        ratio = self.history.loss / self.history.constant
        ax.plot(self.history.epoch, ratio, color=colour("al"), marker=".")
        ax.axhspan(1 - TOLERANCE, 1, color="0.6", alpha=0.4, lw=0)
        ax.set(xlabel="epoch", ylabel="loss / constant's", ylim=(0, max(1.2, ratio.max())))
        ax.set_title("No better than the constant" if self.stalled else "Better than the constant")
