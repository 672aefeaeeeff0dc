"""Norms of convolutional networks by name, and what BatchNorm can't take.

BatchNorm looks at all samples of a forward, so cutting a batch into micro-batches changes what it
computes; GroupNorm looks at one sample at a time, so it does not.
"""

import math

from torch import nn

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
