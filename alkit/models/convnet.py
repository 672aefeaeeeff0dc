"""A small convolutional network for small images. Shapes: B batch, C channels, H, W."""

from torch import nn


def convnet(
    channels: int = 1, widths: tuple[int, ...] = (32, 64, 64), dropout: float = 0.1
) -> list[nn.Sequential]:
    """Return one block a width: convolution 3 x 3, batch norm, ReLU, dropout.

    The first block keeps H and W; the second halves them by a stride of 2; the others keep them.
    """
    blocks = []
    for index, width in enumerate(widths):
        stride = 2 if index == 1 else 1
        convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        blocks.append(
            nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(dropout))
        )
        channels = width
    return blocks
