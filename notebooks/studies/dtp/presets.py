"""The published configurations, and the suite's own for two cores.

What to know of the six `reproduce` files is in docs/sources.md; where the files of
one data set disagree, ours agree with the last corrected one; `cifar10_legacy` keeps the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from alkit.data.parts import DataSet
from alkit.dtp.networks import Net, Switches, network
from alkit.dtp.settings import Settings
from studies.dtp.data import pictures


@dataclass(frozen=True)
class Preset:
    """A network, its data and settings.

    Attributes:
        classes, channels, side: of the network.
        options: of the network, see `alkit.dtp.network`.
        samples: of the training part, if not all.
        augment: how training images are changed, see `alkit.data.parts.Part.batches`.
        ranks: processes, as published; any other number gives the same bits.
        note: where the values come from.
    """

    network: str
    data: str
    settings: Settings
    normalisation: str = ""
    classes: int = 10
    channels: int = 3
    side: int = 32
    options: Mapping[str, int] = field(default_factory=dict)
    samples: int | None = None
    augment: str = "none"
    ranks: int = 1
    switches: Switches = Switches()
    note: str = ""

    def net(self, seed: int = 0) -> Net:
        """Make the network."""
        shape = {"classes": self.classes, "channels": self.channels, "side": self.side}
        return network(self.network, **shape, seed=seed, switches=self.switches, **self.options)

    def load(self, **options: Any) -> DataSet:
        """Load the data; options are those of `studies.dtp.data.pictures`."""
        own: dict[str, Any] = {"side": self.side, "train": self.samples}
        own |= {"normalisation": self.normalisation}
        return pictures(self.data, **(own | options))


def _with(base: Preset, settings: Mapping[str, Any], **changes: Any) -> Preset:
    """Return a preset with other settings, and other fields."""
    return replace(base, settings=replace(base.settings, **settings), **changes)


_PUBLISHED = Settings(
    epochs=90,
    batch=128,
    beta=0.7,
    iterations=(20, 30, 35, 55, 20),
    sigma=(0.4, 0.4, 0.2, 0.2, 0.08),
    feedback_lr=(1e-4, 3.5e-4, 8e-3, 8e-3, 0.18),
    lr=0.05,
    schedule="cosine_published",
    seed=123,
)
_LENET = replace(
    _PUBLISHED,
    batch=256,
    beta=0.4655,
    iterations=(41, 51, 24),
    sigma=(0.416402, 0.382626, 0.139538),
    feedback_lr=(7.18843e-4, 1.25103e-4, 3.54147e-2),
    lr=0.03618,
)
_ALIGNMENT = Settings(
    batch=256,
    beta=0.4655,
    iterations=5000,
    sigma=(0.2, 0.2, 0.1),
    feedback_lr=(1e-4, 2.5e-3, 0.01),
    schedule="none",
    seed=123,
)
# feedback_lr = kappa / (2 sigma_n^2 P_n) with kappa 5e-3, P_n the positions of a block's output
_SMALL = Settings(
    epochs=8,
    batch=64,
    iterations=(10, 14, 10),
    sigma=(0.3, 0.2, 0.08),
    feedback_lr=(5e-3 / 2.88, 5e-3 / 0.32, 5e-3 / 0.0128),
    lr=0.05,
)
_CIFAR = Preset("simple_vgg", "cifar10", _PUBLISHED, "cifar10", augment="edge")
_IMAGENET = _with(
    Preset("simple_vgg", "imagenet32", _PUBLISHED, "imagenet", classes=1000, augment="edge"),
    {"batch": 256, "iterations": (25, 35, 40, 60, 25), "lr": 0.01},
)
_TINY = Preset("tiny", "cifar10", _SMALL, "cifar10", side=16)
_DIGITS = replace(_TINY, data="digits", normalisation="", channels=1)

PRESETS: dict[str, Preset] = {
    "cifar10_dtp": replace(_CIFAR, note="file: rate 0.08, ImageNet's scale"),
    "cifar10_ranks": replace(_CIFAR, ranks=6, note="file: this one"),
    "imagenet32_dtp": _IMAGENET,
    "imagenet32_ranks": replace(_IMAGENET, ranks=6),
    "cifar10_legacy": _with(
        _CIFAR, {"lr": 0.08}, normalisation="cifar10_3xstd", note="what rate 0.08 was found for"
    ),
    "lenet": Preset("lenet", "cifar10", _LENET, "cifar10", augment="edge"),
    "alignment": Preset(
        "lenet",
        "cifar10",
        _ALIGNMENT,
        "cifar10",
        options={"padding": 0},
        note="one batch, then angles; without biases",
    ),
    "tiny": _TINY,
    # on digits weights move faster: at half the iterations feedback falls behind, and runs diverge
    "tiny_digits": _with(_DIGITS, {"iterations": (20, 28, 20), "lr": 0.03}),
    "smoke": _with(_DIGITS, {"epochs": 1, "iterations": 2}, samples=128),
}
