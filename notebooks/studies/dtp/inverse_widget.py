"""A dashboard of one layer's inverse: noise, rate and iterations, and how near B comes to W^T."""

import ipywidgets as W
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from alkit.dtp.networks import Net, network
from alkit.dtp.pieces import EXACT, PUBLISHED
from alkit.dtp.settings import Settings
from studies.common.dashboards import Dashboard
from studies.dtp.one_batch import feedback_rates, trace


class InverseDashboard(Dashboard):
    """Choose noise, rate, iterations and the places for unpooling; see the feedback learn.

    Attributes:
        sigma, rate, iterations, index, exact: controls. `.value` may be set in code.
        table: what is drawn, see `studies.dtp.one_batch.trace`.
    """

    def __init__(self, x: Tensor, *, seed: int = 0, iterations: int = 100) -> None:
        self.x, self.seed = x, seed
        self.sigma = W.FloatLogSlider(0.2, base=10, min=-2, max=0, step=0.1, description="sigma")
        self.rate = W.FloatLogSlider(2e-2, base=10, min=-3, max=-0.5, step=0.1, description="kappa")
        self.iterations = W.IntSlider(
            iterations, min=20, max=400, step=20, description="iterations"
        )
        self.index = W.Dropdown(options=["own", "frozen"], description="places")
        self.exact = W.Checkbox(value=False, description="matched activation")
        self.table = pd.DataFrame()
        super().__init__([self.sigma, self.rate, self.iterations], [self.index, self.exact])

    def net(self) -> Net:
        """Make the network anew."""
        switches = EXACT if self.exact.value else PUBLISHED
        channels, side = self.x.shape[1:3]
        return network("tiny", channels=channels, side=side, seed=self.seed, switches=switches)

    def _redraw(self) -> None:
        net, sigma = self.net(), self.sigma.value
        rates = feedback_rates(net, self.x, [sigma] * 3, self.rate.value)
        settings = Settings(sigma=sigma, feedback_lr=tuple(rates), index=self.index.value)
        try:
            self.table = trace(net, self.x, settings, self.iterations.value, seed=self.seed)
        except FloatingPointError as error:
            self.report.value = f"<p class='alkit-ready'>{error}</p>"
            self.picture.value = b""  # it showed other settings
            return
        last = self.table[self.table.iteration == self.table.iteration.max()]
        words = ", ".join(
            f"{r.block} {r.angle:.0f}&deg; ({r.norm_ratio:.2f})" for r in last.itertuples()
        )
        self.report.value = (
            f"<p class='alkit-ready'>Angle between B and W&#7488;, and the ratio of their norms,"
            f" after {self.iterations.value} iterations: {words}.</p>"
        )
        self._show(picture(self.table))


def picture(table: pd.DataFrame) -> Figure:
    """Draw angle, distance and loss over iterations, one line per block."""
    fig, axes = plt.subplots(1, 3, figsize=(8.0, 2.7))
    blocks = list(dict.fromkeys(table.block))
    marks = {"angle": "angle to W^T, degrees", "distance": "distance from W^T", "loss": "loss"}
    for ax, (column, label) in zip(axes, marks.items(), strict=True):
        for block in blocks:
            own = table[table.block == block]
            scale = own[column].abs().max() if column == "loss" else 1.0
            ax.plot(own.iteration, own[column] / scale, label=block)
        ax.set(xlabel="iteration", ylabel=label if column != "loss" else "loss / its largest")
    axes[0].set_ylim(0, 95)
    axes[0].legend(frameon=False, fontsize=8)
    angles = table.groupby("iteration", sort=True).angle.median()
    ends = f"{angles.iloc[0]:.0f} degrees at start, {angles.iloc[-1]:.0f} at the end"
    fig.suptitle(f"Feedback turns: median angle {ends}", x=0.01, ha="left", wrap=True)
    return fig
