"""The networks of split learning by name, as units; every party builds them by itself."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from alkit.engine.random import random_from
from alkit.models.split_nets import torchvisions, vgg_split

_BUILT_BY: dict[str, Callable[..., list[nn.Module]]] = {
    **{f"VGG{depth}": partial(vgg_split, depth) for depth in (5, 8, 11, 16)},
    **{f"ResNet{depth}": partial(torchvisions, f"resnet{depth}") for depth in (18, 50)},
    "MobileNetSmall": partial(torchvisions, "mobilenet_v3_small"),
    "MobileNetLarge": partial(torchvisions, "mobilenet_v3_large"),
}
NETWORKS = tuple(_BUILT_BY)


def build(
    name: str,
    classes: int = 10,
    *,
    channels: int = 3,
    side: int = 32,
    norm: str = "batch",
    seed: int = 1994,
) -> list[nn.Module]:
    """Return the units of a network; the same seed gives the same weights, wherever it is cut.

    Only VGGs take other sizes than three channels of 32 x 32.

    Raises:
        ValueError: an unknown name.
    """
    if name not in NETWORKS:
        raise ValueError(f"no network {name!r}; there are {', '.join(NETWORKS)}")
    options = {"side": side, "channels": channels} if name.startswith("VGG") else {}
    with random_from(seed, "weights"):
        return _BUILT_BY[name](classes, norm=norm, **options)


def has_batch_norm(units: Iterable[nn.Module]) -> bool:
    """Whether any unit looks at more than one sample at a time."""
    return any(isinstance(part, _BatchNorm) for unit in units for part in unit.modules())
