"""Networks, pictures and settings of target propagation: as published, and smaller for two cores.

What to know of the six published `reproduce` files is in notebook 26; where the files of one
data set disagree, ours agree with the last corrected one.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import avg_pool2d
from torch.optim.lr_scheduler import CosineAnnealingLR

import alkit
from alkit.data.datasets import load
from alkit.data.parts import DataSet, Part
from alkit.dtp.networks import Net, network
from alkit.dtp.pieces import PUBLISHED, Switches
from alkit.dtp.settings import Settings


@dataclass(frozen=True)
class Preset:
    """A network, its data and how it is trained.

    Attributes:
        kind, weight_decay: of the forward weights' optimiser; SGD has momentum 0.9.
        falls: how lr falls: "cosine", to 0 over all steps; "published", an epoch a step, to 1e-5 at
            epoch 85 of 90 and up again; "": not at all.
        channels, side: of the network, whose classes are ten.
        augment: how training images are changed, see `alkit.data.parts.Part`.
    """

    network: str
    data: str
    settings: Settings
    epochs: int = 1
    batch: int = 128
    lr: float = 0.05
    kind: type[torch.optim.Optimizer] = torch.optim.SGD
    weight_decay: float = 1e-4
    falls: str = "cosine"
    channels: int = 3
    side: int = 32
    augment: str = "none"
    switches: Switches = PUBLISHED

    def net(self, seed: int = 0) -> Net:
        """Make the network."""
        shape = {"channels": self.channels, "side": self.side}
        return network(self.network, **shape, seed=seed, switches=self.switches)

    def changed(self, **changes: Any) -> "Preset":
        """Return a preset with other fields, or other fields of its settings."""
        own = {each.name for each in fields(Settings)} & changes.keys()
        settings = replace(self.settings, **{name: changes.pop(name) for name in own})
        return replace(self, settings=settings, **changes)

    def training(self, samples: int) -> dict[str, Any]:
        """Return keywords of `alkit.fit` for so many samples, without those of the method."""
        own = {"momentum": 0.9} if self.kind is torch.optim.SGD else {}
        steps = self.epochs * -(-samples // self.batch)
        schedulers = {
            "cosine": alkit.each_batch(partial(CosineAnnealingLR, T_max=steps)),
            "published": partial(CosineAnnealingLR, T_max=85, eta_min=1e-5),
            "": None,
        }
        optimizer = partial(self.kind, weight_decay=self.weight_decay, **own)
        options = {"optimizer": optimizer, "scheduler": schedulers[self.falls], "lr": self.lr}
        return options | {"epochs": self.epochs, "batch_size": self.batch}

    def load(self, **kept: int | None) -> DataSet:
        """Load the data, so many samples of parts by name."""
        return pictures(self.data, self.side, **kept)


def pictures(name: str, side: int = 32, **kept: int | None) -> DataSet:
    """Return a data set of pictures at another side, CIFAR-10 by the published mean and deviation.

    Args:
        side: digits are stretched to it, of others it must divide the side: means over squares.
        kept: samples of parts by name, as many of each class; None for all.
    """
    data = load(name, **({"size": side} if name == "digits" else {})).subset(**kept)
    parts = {part: _scaled(getattr(data, part), name, side) for part in PARTS}
    return replace(data, **parts)


def _scaled(part: Part, name: str, side: int) -> Part:
    if name == "cifar10":
        part = replace(part, mean=CIFAR_MEAN, std=CIFAR_STD)
    if (own := part.x.shape[2]) == side:
        return part
    if own % side:
        raise ValueError(f"side is {side}: the pictures have {own}, which it must divide")
    x = part.x
    if part.is_bytes:
        mean_C11, std_C11 = (torch.tensor(s)[:, None, None] for s in (part.mean, part.std))
        x = (x.float() / 255 - mean_C11) / std_C11
    return replace(part, x=avg_pool2d(x, own // side), mean=None, std=None)


PARTS = ("train", "validation", "test")
CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


_PUBLISHED = Settings(
    iterations=(20, 30, 35, 55, 20),
    sigma=(0.4, 0.4, 0.2, 0.2, 0.08),
    feedback_lr=(1e-4, 3.5e-4, 8e-3, 8e-3, 0.18),
)
_LENET = Settings(
    beta=0.4655,
    iterations=(41, 51, 24),
    sigma=(0.416402, 0.382626, 0.139538),
    feedback_lr=(7.18843e-4, 1.25103e-4, 3.54147e-2),
)
# feedback_lr = kappa / (2 sigma_n^2 P_n) with kappa 5e-3, P_n the positions of a block's output
_SMALL = Settings(
    iterations=(10, 14, 10),
    sigma=(0.3, 0.2, 0.08),
    feedback_lr=(5e-3 / 2.88, 5e-3 / 0.32, 5e-3 / 0.0128),
)
_CIFAR = Preset("simple_vgg", "cifar10", _PUBLISHED, epochs=90, falls="published", augment="edge")
_TINY = Preset("tiny", "cifar10", _SMALL, epochs=8, batch=64, side=16)
_DIGITS = replace(_TINY, data="digits", channels=1)

PRESETS: dict[str, Preset] = {
    "cifar10_dtp": _CIFAR,  # its sequential file has rate 0.08, and ImageNet's scale
    "lenet": replace(_CIFAR, network="lenet", batch=256, settings=_LENET, lr=0.03618),
    "tiny": _TINY,
    # on digits weights move faster: at half the iterations feedback falls behind, and runs diverge
    "tiny_digits": _DIGITS.changed(iterations=(20, 28, 20), lr=0.03),
}
