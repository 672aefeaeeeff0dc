"""Recipes: how blocks become AL layers; losses, codes and bridges as plain data.

detached       learned codes, contrast of the bridge with the codes of all classes
coupled        the same, and the contrast also trains the codes
original       the recipe of the publication, one for images and one for texts
mse            learned codes and mean squared error, with unbounded scores at the first level
regression     the same with numbers (B, C) to predict; multi_label: with C labels of 0 or 1

A fixed code per class teaches a label side nothing: that is the local rule `fixed_codes`, see
`alkit.to_local`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from alkit.al.codes import Contrast
from alkit.al.layers import Loss
from alkit.engine.optimizers import adam

FIRST_LOSSES: dict[str, Loss] = {
    "mse": F.mse_loss,
    "cross_entropy": F.cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
}
CHOICES = {"bridge": ("pooled", "conv", "flat"), "codes": ("learned", "fixed")}
CHOICES |= {"associated": ("mse", "contrast")}


@dataclass(frozen=True)
class Recipe:
    """How every layer of an AL model is made from its block.

    Attributes:
        bridge: "pooled" (2 x 2 means, or means over tokens), "conv" (pictures: a small network,
            then 2 x 2 means; texts as "pooled") or "flat" (the whole picture; padding counts too).
        hidden: width of the bridge's hidden layer, or of its convolutions; None for no hidden layer
            (with "conv": as many as the block has channels, but at least 64 and at most code_dim).
        ending: activation after each layer of a flat or pooled bridge ("none", "relu", "sigmoid",
            "tanh"), or "unit" for length 1.
        decoders: activations after a learned h, of the first level and of those above.
        first_loss, head: of the first level's autoencoder, and of a head: "mse", "cross_entropy" or
            "bce" (on scores).
    """

    name: str
    bridge: str = "pooled"
    hidden: int | None = None
    ending: str = "tanh"
    codes: str = "learned"  # g and h are linear layers; or "fixed", a table of directions
    encoder: str = "tanh"  # activation after a learned g
    decoders: tuple[str, str] = ("none", "none")
    first_loss: str = "cross_entropy"
    head: str = "cross_entropy"
    read: str = "head"  # where scores come from if there is a head: or "code"
    associated: str = "mse"  # or "contrast", with the next three
    scale: float = 10.0
    smoothing: float = 0.0
    centred: bool = False
    coupled: bool = False  # does the associated loss train learned codes, too, see `AL`
    code_dim: int = 128  # K, the width of the label code
    label_shortcut: bool = True  # run the label side once a class
    fused: bool = True  # Adam in one pass, not torch's plain loop over the parameters
    channels_last: bool = True  # pictures have channels innermost, which is faster on a CPU
    lr: float = 1e-3
    cosine: bool = False  # does the rate fall over the epochs
    bp_lr: float | None = None  # of the BP twin; that of AL if None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is {value!r}: give {', '.join(allowed)}")
        if self.coupled and self.codes == "fixed":
            raise ValueError("coupled is True, and fixed codes learn nothing: give codes='learned'")

    def associated_loss(self) -> Loss:
        """Return the loss between bridge and code."""
        if self.associated == "mse":
            return F.mse_loss
        return Contrast(self.scale, smoothing=self.smoothing, centred=self.centred)

    def autoencoder_loss(self, level: int) -> Loss:
        """Return the loss between a decoded and a given label code, of level 0 and up."""
        return F.mse_loss if level else FIRST_LOSSES[self.first_loss]

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return the Adam of this recipe."""
        return (adam if self.fused else torch.optim.Adam)(parameters, lr=lr)


# as the recorded runs of the publication had them
_PUBLISHED: dict[str, Any] = dict.fromkeys(("label_shortcut", "fused", "channels_last"), False)
_PUBLISHED |= {"name": "original", "read": "code"}
_IMAGES: dict[str, Any] = {"bridge": "flat", "hidden": 1000, "code_dim": 700, "first_loss": "mse"}
_IMAGES |= {"ending": "sigmoid", "encoder": "sigmoid", "decoders": ("sigmoid", "sigmoid")}
_MSE = Recipe("mse")
# chosen on the validation part of tiny ImageNet, one seed: at 2e-3 BP is worse than at 1e-3
_FIXED = Recipe("fixed_codes", bridge="conv", ending="unit", codes="fixed", associated="contrast")
_FIXED = replace(_FIXED, lr=2e-3, bp_lr=1e-3, cosine=True)
# chosen on the validation part of AG News, one seed; BP takes the same
_FIXED_TEXTS = replace(_FIXED, smoothing=0.1, lr=3e-3, bp_lr=None)
# rates: the one most often best in 21
_DETACHED = replace(_FIXED_TEXTS, name="detached", codes="learned", centred=True)


def _both(recipe: Recipe) -> dict[str, Recipe]:
    return {"images": recipe, "texts": recipe}


FIXED_CODES = {"images": _FIXED, "texts": _FIXED_TEXTS}
RECIPES: dict[str, dict[str, Recipe]] = {
    "detached": _both(_DETACHED),
    "coupled": _both(replace(_DETACHED, name="coupled", coupled=True)),
    "original": {
        "images": Recipe(**_PUBLISHED, **_IMAGES, lr=1e-4, cosine=True),
        "texts": Recipe(**_PUBLISHED, decoders=("tanh", "none"), lr=2.5e-4),
    },
    "mse": _both(_MSE),
    "regression": _both(replace(_MSE, first_loss="mse", head="mse")),
    "multi_label": _both(replace(_MSE, first_loss="bce", head="bce")),
}


def find_recipe(recipe: str | Recipe, kind: str) -> Recipe:
    """Return a recipe by name, for "images" or "texts"; a recipe of your own passes."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        names = ", ".join(RECIPES)
        local = ", or method='local', rule='fixed_codes'" * (recipe == "fixed_codes")
        raise ValueError(f"recipe is {recipe!r}: give {names}{local}")
    return RECIPES[recipe][kind]
