"""ResNet-18 of the pipelined-AL experiments, for 32 x 32 images. Shapes: B batch, C, H, W."""

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: identity, or a 3 x 3 convolution when the stride is 2.

    (The usual ResNet takes a 1 x 1 convolution there; the published AL code does not.)
    """

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(channels, out, stride), nn.ReLU(), _convolution(out, out, 1)
        )
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else _convolution(channels, out, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, out, H / stride, W / stride)."""
        return self.activation(self.body(x) + self.shortcut(x))


def resnet18_al(width: float = 1.0, *, channels: int = 3) -> list[nn.Sequential]:
    """Return the five blocks: stem, then four pairs of basic blocks of 64 to 512 channels.

    At width 1 a 32 x 32 image leaves as (B, 512, 4, 4).
    """
    widths = [round(width * w) for w in (64, 64, 128, 256, 512)]
    blocks = [nn.Sequential(_convolution(channels, widths[0], 1), nn.ReLU())]
    for index, (before, out) in enumerate(zip(widths, widths[1:], strict=False)):
        stride = 1 if index == 0 else 2
        blocks.append(nn.Sequential(BasicBlock(before, out, stride), BasicBlock(out, out, 1)))
    return blocks


def resnet18_al_head(num_classes: int, width: float = 1.0) -> nn.Sequential:
    """Return the BP twin's sixth block: global average pool, linear -> (B, classes)."""
    features = round(width * 512)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, num_classes))


def _convolution(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out)
    )
