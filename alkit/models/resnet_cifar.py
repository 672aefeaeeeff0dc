"""ResNets of depth 6 n + 2 for 32 x 32 images, as in He et al. 2016. Shapes: B batch, C, H, W.

A block is two 3 x 3 convolutions with BatchNorm and a shortcut; a cut falls between blocks.

    stem | n blocks of 16 | n blocks of 32, the first with stride 2 | n blocks of 64 | head
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut.

    Args:
        shortcut: where the shape changes, "A": every second pixel, and zeros for the new channels;
            "B": a 1 x 1 convolution with BatchNorm.
    """

    def __init__(self, channels: int, out: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.first = _convolution(channels, out, 3, stride)
        self.second = _convolution(out, out, 3, 1)
        self.stride, self.more = stride, out - channels
        changes = stride > 1 or self.more > 0
        with_weights = changes and shortcut == "B"
        self.shortcut = _convolution(channels, out, 1, stride) if with_weights else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, out, H / stride, W / stride)."""
        return F.relu(self.second(F.relu(self.first(x))) + self._short(x))

    def _short(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            return self.shortcut(x)
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.more)) if self.more else x


def resnet_cifar(
    depth: int = 20, classes: int = 10, *, width: int = 16, shortcut: str = "A", channels: int = 3
) -> list[nn.Module]:
    """Return the units: stem, blocks, head -> (B, classes).

    Args:
        depth: 6 n + 2, such as 8, 20, 56 or 110.
        width: channels of the first third; 16 as published.
    Raises:
        ValueError: a depth that is no such number, or another shortcut.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth is {depth}: give 6 n + 2, such as 20")
    if shortcut not in ("A", "B"):
        raise ValueError(f"shortcut is {shortcut!r}: give 'A' or 'B'")
    units: list[nn.Module] = [nn.Sequential(_convolution(channels, width, 3, 1), nn.ReLU())]
    before = width
    for third in range(3):
        out = width << third
        for number in range((depth - 2) // 6):
            stride = 2 if third and not number else 1
            units.append(ResidualBlock(before, out, stride, shortcut))
            before = out
    units.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)))
    for module in (module for unit in units for module in unit.modules()):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return units


def _convolution(channels: int, out: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))
