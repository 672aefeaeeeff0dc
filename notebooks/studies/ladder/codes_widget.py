"""A dashboard of untrained label codes: how far apart are they, as a cosine sees it?"""

import html

import ipywidgets as W
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor

from alkit.al.codes import Contrast, code_table
from alkit.al.recipes import Recipe
from alkit.base.seeds import generator_for
from alkit.lab.viz import WIDE, colour
from studies.al.label_training import stack
from studies.common.dashboards import Dashboard

KINDS = ("sigmoid", "tanh", "random", "orthonormal")
CODE_DIM = 128


class CodeAngles(Dashboard):
    """Choose classes, codes, scale, and whether the mean is taken off; see cosines and the floor.

    Attributes:
        classes, kind, scale, centred: the controls; `.value` may be set in code.
        rho: mean cosine between the codes of different classes.
        floor: least cross-entropy, where every bridge hits its class's code.
    """

    def __init__(self, classes: int = 14) -> None:
        self.classes = W.IntSlider(classes, 2, 100, description="classes", continuous_update=False)
        self.kind = W.Dropdown(options=KINDS, description="codes")
        self.scale = W.FloatSlider(10.0, min=1.0, max=30.0, description="scale")
        self.centred = W.Checkbox(False, description="centred")
        self.rho = self.floor = float("nan")
        super().__init__([self.classes, self.kind], [self.scale, self.centred])

    def _redraw(self) -> None:
        rows = codes(self.kind.value, self.classes.value)
        if self.centred.value:
            rows = rows - rows.mean(0)
        unit = F.normalize(rows, dim=1)
        cosines = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
        self.rho = cosines.mean().item()
        self.floor = floor(rows, self.scale.value)
        chance = torch.tensor(float(len(rows))).log().item()
        said = f"mean cosine {self.rho:.3f}, floor {self.floor:.4f}, chance {chance:.2f}"
        self.report.value = f"<b class='alkit-ready'>{html.escape(said)}</b>"
        fig, ax = plt.subplots(figsize=(WIDE[0] / 2, WIDE[1]))
        ax.hist(cosines.numpy(), bins=40, range=(-1, 1), color=colour("al"))
        ax.set(xlabel="cosine of two classes' codes", ylabel="pairs")
        ax.axvline(self.rho, color="0.2")
        ax.set_title(f"Mean cosine {self.rho:.2f}")
        self._show(fig)


@torch.no_grad()
def codes(kind: str, classes: int, seed: int = 0) -> Tensor:
    """Return codes of all classes, (C, 128): of an untrained label encoder, or fixed ones."""
    if kind == "orthonormal":
        return code_table(classes, CODE_DIM, seed)
    if kind == "random":
        generator = generator_for("random codes", seed, classes)
        return torch.randn(classes, CODE_DIM, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        side = stack(Recipe("widget", encoder=kind, code_dim=CODE_DIM), classes)[0]
    return side.g(torch.eye(classes))


def floor(rows: Tensor, scale: float) -> float:
    """Return the contrast's loss where every sample's bridge is its own class's code."""
    scores = Contrast(scale).scores(rows, rows)
    return F.cross_entropy(scores, torch.arange(len(rows))).item()
