"""The published configurations, and the suite's own for two cores.

What to know of the six `reproduce` files is in docs/sources.md; where the files of
one data set disagree, ours agree with the last corrected one; `cifar10_legacy` keeps the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

import alkit
from alkit.data.parts import DataSet
from alkit.dtp.networks import Net, network
from alkit.dtp.pieces import PUBLISHED, Switches
from alkit.dtp.settings import Settings
from studies.dtp.data import pictures


@dataclass(frozen=True)
class Preset:
    """A network, its data and how it is trained.

    Attributes:
        kind, weight_decay: of the forward weights' optimiser; SGD has momentum 0.9.
        falls: how lr falls: "cosine", to 0 over all steps; "published", an epoch a step, to 1e-5 at
            epoch 85 of 90 and up again; "": not at all.
        classes, channels, side: of the network.
        options: of the network, see `alkit.dtp.network`.
        train: samples of the training part, if not all.
        augment: how training images are changed, see `alkit.data.parts.Part`.
    """

    network: str
    data: str
    settings: Settings
    normalisation: str = ""
    epochs: int = 1
    batch: int = 128
    lr: float = 0.05
    kind: type[torch.optim.Optimizer] = torch.optim.SGD
    weight_decay: float = 1e-4
    falls: str = "cosine"
    classes: int = 10
    channels: int = 3
    side: int = 32
    options: Mapping[str, Any] = field(default_factory=dict)
    train: int | None = None
    augment: str = "none"
    switches: Switches = PUBLISHED

    def net(self, seed: int = 0) -> Net:
        """Make the network."""
        shape = {"classes": self.classes, "channels": self.channels, "side": self.side}
        return network(self.network, **shape, seed=seed, switches=self.switches, **self.options)

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

    def load(self, **options: Any) -> DataSet:
        """Load the data; options are those of `studies.dtp.data.pictures`."""
        own: dict[str, Any] = {"side": self.side, "train": self.train}
        own |= {"normalisation": self.normalisation}
        return pictures(self.data, **(own | options))


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
_ALIGNMENT = Settings(
    beta=0.4655, iterations=5000, sigma=(0.2, 0.2, 0.1), feedback_lr=(1e-4, 2.5e-3, 0.01)
)
# feedback_lr = kappa / (2 sigma_n^2 P_n) with kappa 5e-3, P_n the positions of a block's output
_SMALL = Settings(
    iterations=(10, 14, 10),
    sigma=(0.3, 0.2, 0.08),
    feedback_lr=(5e-3 / 2.88, 5e-3 / 0.32, 5e-3 / 0.0128),
)
_CIFAR = Preset(
    "simple_vgg", "cifar10", _PUBLISHED, "cifar10", epochs=90, falls="published", augment="edge"
)
_TINY = Preset("tiny", "cifar10", _SMALL, "cifar10", epochs=8, batch=64, side=16)
_DIGITS = replace(_TINY, data="digits", normalisation="", channels=1)
_FIVE = replace(_CIFAR, network="lenet", batch=256)

PRESETS: dict[str, Preset] = {
    "cifar10_dtp": _CIFAR,  # its sequential file has rate 0.08, and ImageNet's scale
    "cifar10_legacy": replace(_CIFAR, lr=0.08, normalisation="cifar10_3xstd"),  # that rate's scale
    "lenet": replace(_FIVE, settings=_LENET, lr=0.03618),
    # one batch, then angles; without biases
    "alignment": replace(
        _FIVE, settings=_ALIGNMENT, epochs=1, falls="", options={"pool": (3, 2, 0)}
    ),
    "tiny": _TINY,
    # on digits weights move faster: at half the iterations feedback falls behind, and runs diverge
    "tiny_digits": _DIGITS.changed(iterations=(20, 28, 20), lr=0.03),
    "smoke": _DIGITS.changed(epochs=1, iterations=2, train=128),
}
