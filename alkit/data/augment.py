"""Augmentation of a batch of images: crop and flip of all at once, torchvision's colours of each.

Everything random comes from the generator that is given, in a fixed order, so that a batch is a
function of its seed. Shapes: B images, C channels, H, W.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from alkit.base.seeds import drawing_from

KINDS = ("none", "weak", "edge", "strong")  # of images; the last one only of uint8 RGB
PADDING = 4


def crop_and_flip(x_BCHW: Tensor, generator: torch.Generator, kind: str = "weak") -> Tensor:
    """Cut a window of the old size out of each image padded by 4 pixels; flip every second one.

    Padding is 0, or the border repeated for the kind "edge".
    """
    count, channels, height, width = x_BCHW.shape
    top_B, left_B = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator)
    flip_B, columns_W = torch.rand(count, 1, generator=generator) < 0.5, torch.arange(width)
    rows_BH = top_B + torch.arange(height)
    columns_BW = left_B + torch.where(flip_B, columns_W.flip(0), columns_W)
    padded = pad(x_BCHW, (PADDING,) * 4, mode="replicate" if kind == "edge" else "constant")
    # one gather moves all pixels: indexing each image takes seven times as long
    pixels = rows_BH[:, :, None] * padded.shape[3] + columns_BW[:, None, :]
    pixels = pixels.reshape(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(x_BCHW.shape)


def colours(x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Jitter the colours of four images in five, then make one in five grey: floats in [0, 1]."""
    from torchvision.transforms import v2  # takes two seconds, and few sets need it

    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    change = v2.Compose([jitter, v2.RandomGrayscale(0.2)])
    with drawing_from(generator.get_state()):
        return torch.stack([change(x_CHW) for x_CHW in x_BCHW])
