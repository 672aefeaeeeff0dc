"""Norms of convolutional networks by name, and what BatchNorm can't take.

BatchNorm looks at all samples of a forward, so cutting a batch into micro-batches changes what it
computes; GroupNorm looks at one sample at a time, so it does not.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from alkit.models.blocks import as_blocks, dry_run, trainable

NORMS = ("batch", "group", "none")
GROUPS = 8


def norm_2d(kind: str, channels: int) -> nn.Module:
    """Return a norm for (B, channels, H, W).

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in NORMS:
        raise ValueError(f"norm is {kind!r}: give {', '.join(NORMS)}")
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def check_norms(model: Any, x: Any, smallest: int | None) -> None:
    """Refuse a part of one sample where BatchNorm takes a mean over samples alone.

    Args:
        x: samples.
    Raises:
        ValueError: names the module.
    """
    if smallest != 1 or not isinstance(model, nn.Module | list | tuple):
        return
    blocks, found = as_blocks(model), dict[str, int]()  # values of a channel in a sample

    def look_at(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            found[name] = inputs[0][:1, :1].numel()

        return hook

    hooks = [
        module.register_forward_pre_hook(look_at(f"{type(module).__name__} of block {at}"))
        for at, block in enumerate(blocks)
        for module in block.modules()
        if isinstance(module, _BatchNorm) and (module.training or trainable(module))
    ]
    try:
        dry_run(blocks, x)
    finally:
        for each in hooks:
            each.remove()
    if alone := [name for name, count in found.items() if count == 1]:
        raise ValueError(
            f"a batch, or a part of one, has one sample, and {alone[0]} can't take a mean of one:"
            " give drop_last=True (to a loader, itself), another batch_size or fewer micro"
        )
