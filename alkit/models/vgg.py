"""The VGG of the pipelined-AL experiments, for 32 x 32 images. B batch, C channels, H, W."""

from collections.abc import Callable

from torch import nn

# channels of the convolutions of each block; a block ends in a 2 x 2 max pool
STAGES = ((128, 256), (256, 512), (512,), (512,))


def vgg_al(
    width: float = 1.0,
    *,
    channels: int = 3,
    batch_norm: bool = True,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> list[nn.Sequential]:
    """Return the four blocks: 3 x 3 convolutions with batch norm and activation, then a max pool.

    At width 1 a 32 x 32 image leaves as (B, 512, 2, 2).

    Args:
        width: factor of all channel numbers.
        batch_norm: off gives the convolutions a bias instead.
    """
    blocks = []
    for widths in STAGES:
        parts: list[nn.Module] = []
        for out in (round(width * w) for w in widths):
            parts.append(nn.Conv2d(channels, out, 3, padding=1, bias=not batch_norm))
            parts += [nn.BatchNorm2d(out)] if batch_norm else []
            parts.append(activation())
            channels = out
        blocks.append(nn.Sequential(*parts, nn.MaxPool2d(2)))
    return blocks


def vgg_al_head(num_classes: int, width: float = 1.0, hidden: int = 2500) -> nn.Sequential:
    """Return the BP twin's fifth block: flatten, linear, sigmoid, linear -> (B, classes)."""
    features = 4 * round(width * STAGES[-1][-1])
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.Sigmoid(), nn.Linear(hidden, num_classes)
    )
