"""Untrained label codes as a picture: how far apart are they, as a cosine sees it?"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor

from alkit.al.codes import Contrast, code_table
from alkit.al.recipes import Recipe
from alkit.base.seeds import generator_for
from alkit.lab.viz import WIDE, colour
from studies.al.label_training import stack

KINDS = ("sigmoid", "tanh", "random", "orthonormal")
CODE_DIM = 128


def draw(
    classes: int = 14, kind: str = "sigmoid", scale: float = 10.0, centred: bool = False
) -> float:
    """Draw the cosines between codes of different classes; return the floor of the loss."""
    rows = codes(kind, classes)
    rows = rows - rows.mean(0) if centred else rows
    unit = F.normalize(rows, dim=1)
    cosines = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
    least, rho = floor(rows, scale), cosines.mean().item()
    print(f"mean cosine {rho:.3f}, floor {least:.4f}, chance {math.log(classes):.2f}")
    _, ax = plt.subplots(figsize=(WIDE[0] / 2, WIDE[1]))
    ax.hist(cosines.numpy(), bins=40, range=(-1, 1), color=colour("al"))
    ax.set(xlabel="cosine of two classes' codes", ylabel="pairs", title=f"Mean cosine {rho:.2f}")
    ax.axvline(rho, color="0.2")
    plt.show()
    return least


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
