"""ResNets of depth 6 n + 2 for 32 x 32 images, as in He et al. 2016. Shapes: B batch, C, H, W.

Where the shape changes the shortcut has no weights, the paper's option A: every second pixel, and
zeros for the new channels.

    stem | n blocks of 16 | n blocks of 32, the first with stride 2 | n blocks of 64 | head
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from studies.al.networks import convolution


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(channels, out, stride)
        self.second = convolution(out, out, 1)
        self.stride, self.more = stride, out - channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, out, H / stride, W / stride)."""
        short = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        short = F.pad(short, (0, 0, 0, 0, 0, self.more)) if self.more else short
        return F.relu(self.second(F.relu(self.first(x))) + short)


def resnet_cifar(
    depth: int = 20, classes: int = 10, *, width: int = 16, channels: int = 3
) -> list[nn.Module]:
    """Return the units: stem, blocks, head -> (B, classes).

    Args:
        depth: 6 n + 2, such as 8, 20, 56 or 110.
        width: channels of the first third; 16 as published.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth is {depth}: give 6 n + 2, such as 20")
    n = (depth - 2) // 6
    widths = [width] * (n + 1) + [2 * width] * n + [4 * width] * n
    units: list[nn.Module] = [nn.Sequential(convolution(channels, width, 1), nn.ReLU())]
    units += [ResidualBlock(one, out, out // one) for one, out in pairwise(widths)]
    head = nn.Linear(4 * width, classes)
    units.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head))
    for module in nn.ModuleList(units).modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return units
