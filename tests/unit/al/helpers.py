"""Convolutions that tests of associated learning share."""

from torch import nn


def convnet(channels=1, widths=(4, 4)):
    """Return one block a width: convolution, batch norm, ReLU, dropout; the second halves H, W."""
    blocks = []
    for at, (before, out) in enumerate(zip((channels, *widths), widths, strict=False)):
        convolution = nn.Conv2d(before, out, 3, 2 if at == 1 else 1, padding=1, bias=False)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(), nn.Dropout(0.1)))
    return blocks
