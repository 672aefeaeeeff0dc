"""torchvision's ResNet-18, ResNet-50 and MobileNetV3 as units. Shapes: B batch, C, H, W.

ResNet       stem | residual blocks | mean over the image, linear
MobileNet    stem | inverted residual blocks | 1 x 1 convolution | mean, linear | linear
"""

from collections.abc import Callable
from functools import partial

from torch import nn
from torchvision import models

from alkit.models.norms import norm_2d


def resnet_imagenet(
    depth: int = 18, classes: int = 10, *, channels: int = 3, norm: str = "batch"
) -> list[nn.Module]:
    """Return the 10 units of ResNet-18, or the 18 of ResNet-50 -> (B, classes).

    Raises:
        ValueError: another depth.
    """
    built = {18: models.resnet18, 50: models.resnet50}
    if depth not in built:
        raise ValueError(f"depth is {depth}: give 18 or 50")
    net = built[depth](num_classes=classes, norm_layer=_norm_layer(norm))
    if channels != 3:
        net.conv1 = _with_channels(net.conv1, channels)
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    blocks = [
        block for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for block in layer
    ]
    return [stem, *blocks, nn.Sequential(net.avgpool, nn.Flatten(), net.fc)]


def mobilenet_v3(
    size: str = "small", classes: int = 10, *, channels: int = 3, norm: str = "batch"
) -> list[nn.Module]:
    """Return the 15 units of MobileNetV3-Small, or the 19 of -Large -> (B, classes).

    Raises:
        ValueError: another size.
    """
    built = {"small": models.mobilenet_v3_small, "large": models.mobilenet_v3_large}
    if size not in built:
        raise ValueError(f"size is {size!r}: give 'small' or 'large'")
    net = built[size](num_classes=classes, norm_layer=_norm_layer(norm))
    if channels != 3:
        net.features[0][0] = _with_channels(net.features[0][0], channels)
    expand, activation, dropout, scores = net.classifier
    dropout.inplace = False  # it may be the first of a stage, and a stage's input is a leaf
    last = nn.Sequential(net.avgpool, nn.Flatten(), expand, activation)
    return [*net.features, last, nn.Sequential(dropout, scores)]


def _norm_layer(norm: str) -> Callable[[int], nn.Module] | None:
    # None: what torchvision chooses, which for MobileNet is no BatchNorm with plain defaults
    return None if norm == "batch" else partial(norm_2d, norm)


def _with_channels(old: nn.Conv2d, channels: int) -> nn.Conv2d:
    size = old.kernel_size, old.stride, old.padding
    # torch types what a layer has wider than what it takes
    made = nn.Conv2d(channels, old.out_channels, *size, bias=False)  # type: ignore[arg-type]
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made
