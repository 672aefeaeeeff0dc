"""The networks of the PipeLearn experiments as units. Shapes: B batch, C channels, H, W.

VGG          3 x 3 convolutions with norm, ReLU and perhaps a 2 x 2 pool | linear layers
ResNet       stem | residual blocks | mean over the image, linear
MobileNet    stem | inverted residual blocks | 1 x 1 convolution | mean, linear | linear

The published VGG leaves out the ReLU between linear layers and feeds dropout's result to nobody;
here both are in their places.
"""

import math
from collections.abc import Callable

from torch import nn

# channels of the convolutions, "p" behind those that end in a pool | widths of the hidden linears
VGG = {
    5: ("32p 64p 64", (128,)),
    8: ("32 32p 64 64p 128 128", (128,)),
    11: ("64p 128p 256 256p 512 512p 512 512p", (4096, 4096)),
    16: ("64 64p 128 128p 256 256 256p 512 512 512p 512 512 512p", (4096, 4096)),
}
DROPOUT = {11: 0.5, 16: 0.5}
# BatchNorm looks at all samples of a forward, so cutting a batch into micro-batches changes what it
# computes; GroupNorm looks at one sample at a time, so it does not
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(math.gcd(8, channels), channels),
    "none": lambda channels: nn.Identity(),
}


def vgg_split(
    depth: int = 5, classes: int = 10, *, channels: int = 3, side: int = 32, norm: str = "batch"
) -> list[nn.Module]:
    """Return the units of VGG5, 8, 11 or 16 -> (B, classes).

    Args:
        side: H = W of an image.
        norm: "batch", "group" or "none".
    """
    convolutions, hidden = VGG[depth]
    units: list[nn.Module] = []
    for name in convolutions.split():
        out = int(name.removesuffix("p"))
        pool = [nn.MaxPool2d(2)] if name.endswith("p") else []
        convolution = nn.Conv2d(channels, out, 3, padding=1)
        units.append(nn.Sequential(convolution, NORMS[norm](out), nn.ReLU(), *pool))
        channels, side = out, side // 2 if pool else side
    features = channels * side * side
    for width in hidden:
        dropout = [nn.Dropout(DROPOUT[depth])] if depth in DROPOUT else []
        units.append(nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), *dropout))
        features = width
    units.append(nn.Sequential(nn.Flatten(), nn.Linear(features, classes)))
    for module in nn.ModuleList(units).modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return units


def torchvisions(name: str, classes: int = 10, *, norm: str = "batch") -> list[nn.Module]:
    """Return the units of torchvision's ResNet or MobileNetV3 of a name for colour images."""
    from torchvision import models  # takes two seconds, and VGG needs none of it

    # None: torchvision chooses; for MobileNet it isn't a BatchNorm with plain defaults
    own = None if norm == "batch" else NORMS[norm]
    net = getattr(models, name)(num_classes=classes, norm_layer=own)
    to_rows = [net.avgpool, nn.Flatten()]
    if name.startswith("resnet"):
        stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
        return [stem, *blocks, nn.Sequential(*to_rows, net.fc)]
    *expand, dropout, scores = net.classifier
    dropout.inplace = False  # it may be the first of a stage, and a stage's input is a leaf
    return [*net.features, nn.Sequential(*to_rows, *expand), nn.Sequential(dropout, scores)]
