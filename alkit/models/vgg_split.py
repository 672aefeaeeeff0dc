"""VGG5, 8, 11 and 16 of the PipeLearn experiments, as units. Shapes: B batch, C, H, W.

A unit is a 3 x 3 convolution with norm, ReLU and perhaps a 2 x 2 pool, or a linear layer; a cut may
fall after any of them. The published code leaves the ReLU between linear layers out and feeds
dropout's result to nobody; here both are in their places.
"""

from torch import nn

from alkit.models.norms import norm_2d

# channels of the convolutions, "p" behind those that end in a pool | widths of the hidden linears
VGG_SPLIT = {
    5: (("32p", "64p", "64"), (128,)),
    8: (("32", "32p", "64", "64p", "128", "128"), (128,)),
    11: (("64p", "128p", "256", "256p", "512", "512p", "512", "512p"), (4096, 4096)),
    16: (
        ("64", "64p", "128", "128p", "256", "256", "256p", "512", "512", "512p")
        + ("512", "512", "512p"),
        (4096, 4096),
    ),
}
DROPOUT = {11: 0.5, 16: 0.5}


def vgg_split(
    depth: int = 5, classes: int = 10, *, channels: int = 3, side: int = 32, norm: str = "batch"
) -> list[nn.Module]:
    """Return the units: convolutions, then linear layers -> (B, classes).

    Args:
        depth: 5, 8, 11 or 16 units.
        side: H = W of an image.
        norm: "batch", "group" or "none".
    Raises:
        ValueError: another depth, or images that the pools leave nothing of.
    """
    if depth not in VGG_SPLIT:
        raise ValueError(f"depth is {depth}: give {', '.join(map(str, VGG_SPLIT))}")
    convolutions, hidden = VGG_SPLIT[depth]
    left = side >> sum(name.endswith("p") for name in convolutions)
    if not left:
        raise ValueError(f"images of side {side} are too small for VGG{depth}: pad them to 32")
    units: list[nn.Module] = []
    for name in convolutions:
        out = int(name.removesuffix("p"))
        pool = [nn.MaxPool2d(2)] if name.endswith("p") else []
        convolution = nn.Conv2d(channels, out, 3, padding=1)
        units.append(nn.Sequential(convolution, norm_2d(norm, out), nn.ReLU(), *pool))
        channels = out
    features = channels * left * left
    for width in hidden:
        dropout = [nn.Dropout(DROPOUT[depth])] if depth in DROPOUT else []
        units.append(nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), *dropout))
        features = width
    units.append(nn.Sequential(nn.Flatten(), nn.Linear(features, classes)))
    for unit in units:
        unit.apply(_initialise)
    return units


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
