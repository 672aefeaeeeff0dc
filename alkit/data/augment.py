"""Augmentation of a batch of images at once: crop, flip, colour jitter, grey.

Everything random comes from the generator that is given, in a fixed order, so that a batch is a
function of what seeded it.

Shapes: B images, C channels, H, W; colour operations take floats in [0, 1].
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

KINDS = ("none", "weak", "strong", "edge", "edge_crop")
PADDING = 4
JITTER = 0.4, 0.4, 0.4, 0.1  # most change of brightness, contrast, saturation, hue
JITTER_SHARE, GREY_SHARE = 0.8, 0.2
_LUMA = 0.2989, 0.587, 0.114


def check(kind: str, x: Tensor) -> None:
    """Refuse a kind of augmentation that samples like `x` cannot have.

    Raises:
        ValueError: no such kind; texts; no images (N, C, H, W); "strong" for other than uint8 RGB.
    """
    if kind not in KINDS:
        raise ValueError(f"augment is {kind!r}: give {', '.join(KINDS)}")
    if kind == "none":
        return
    if x.dtype == torch.int64:
        raise ValueError(f"augment={kind!r} is for images, not for texts; leave it 'none'")
    if x.dim() != 4:
        raise ValueError(f"augment={kind!r} needs images (N, C, H, W), got {tuple(x.shape)}")
    if kind == "strong" and (x.dtype != torch.uint8 or x.shape[1] != 3):
        raise ValueError("augment='strong' needs uint8 images of 3 channels: it changes colours")


def crop_and_flip(x_BCHW: Tensor, generator: torch.Generator, kind: str = "weak") -> Tensor:
    """Cut a window of the old size out of each image padded by 4 pixels; flip every second one.

    Padding is 0; of the kinds "edge" and "edge_crop" the border repeated. "edge_crop" flips none:
    a mirrored digit is no digit.
    """
    top_B, left_B, flip_B = draw_windows(len(x_BCHW), generator)
    if kind in ("edge", "edge_crop"):
        return _edge_windows(x_BCHW, top_B, left_B, flip_B & (kind == "edge"))
    return windows(x_BCHW, top_B, left_B, flip_B)


def draw_windows(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the windows of images: (top_B1, left_B1, flip_B1)."""
    top_B, left_B = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator)
    return top_B, left_B, torch.rand(count, 1, generator=generator) < 0.5


def windows(x_BCHW: Tensor, top_B: Tensor, left_B: Tensor, flip_B: Tensor) -> Tensor:
    """Cut these windows out of images padded by 4 zeros, each (B, 1)."""
    height, width = x_BCHW.shape[2:]
    rows_BH = top_B + torch.arange(height)
    columns_W = torch.arange(width)
    columns_BW = left_B + torch.where(flip_B, columns_W.flip(0), columns_W)
    padded = pad(x_BCHW, (PADDING,) * 4)
    return _gathered(padded, rows_BH, columns_BW)


def _edge_windows(x_BCHW: Tensor, top_B: Tensor, left_B: Tensor, flip_B: Tensor) -> Tensor:
    """The same with the border repeated: what lies outside is taken from the nearest pixel."""
    height, width = x_BCHW.shape[2:]
    columns_W = torch.arange(width)
    rows_BH = top_B - PADDING + torch.arange(height)
    columns_BW = left_B - PADDING + torch.where(flip_B, columns_W.flip(0), columns_W)
    return _gathered(x_BCHW, rows_BH.clamp(0, height - 1), columns_BW.clamp(0, width - 1))


def _gathered(x_BCHW: Tensor, rows_BH: Tensor, columns_BW: Tensor) -> Tensor:
    """Take pixels: one gather moves all, indexing each image takes seven times as long."""
    count, channels, _, wide = x_BCHW.shape
    pixels = rows_BH[:, :, None] * wide + columns_BW[:, None, :]
    pixels = pixels.reshape(count, 1, -1).expand(-1, channels, -1)
    shape = count, channels, rows_BH.shape[1], columns_BW.shape[1]
    return x_BCHW.flatten(2).gather(2, pixels).view(shape)


def colours(x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Jitter the colours of four images in five, then make one in five grey.

    Each image draws its own strengths; the order of the four steps is drawn once for the batch.
    """
    steps = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    order = torch.randperm(len(steps), generator=generator).tolist()
    strengths_SB = torch.rand(len(steps), len(x_BCHW), generator=generator) * 2 - 1
    jittered_B = torch.rand(len(x_BCHW), generator=generator) < JITTER_SHARE
    grey_B = torch.rand(len(x_BCHW), generator=generator) < GREY_SHARE
    changed = x_BCHW[jittered_B]
    for step in order:
        change_B = JITTER[step] * strengths_SB[step, jittered_B]
        # a factor around 1, but hue is turned by an angle around 0
        changed = steps[step](changed, change_B if steps[step] is adjust_hue else 1 + change_B)
    result = x_BCHW.clone()
    result[jittered_B] = changed
    result[grey_B] = greyscale(result[grey_B])
    return result


def adjust_brightness(x_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Multiply the colours of each image by its factor."""
    return (x_BCHW * _column(factor_B)).clamp_(0, 1)


def adjust_contrast(x_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Move each image's colours away from (factor > 1) or towards its mean grey."""
    mean_B = _luma(x_BCHW).mean(dim=(1, 2, 3), keepdim=True)
    return _blend(x_BCHW, mean_B, factor_B)


def adjust_saturation(x_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Move each pixel's colour away from (factor > 1) or towards its grey."""
    return _blend(x_BCHW, _luma(x_BCHW), factor_B)


def adjust_hue(x_BCHW: Tensor, turn_B: Tensor) -> Tensor:
    """Turn the hue of each image by a share of the full circle."""
    red, green, blue = x_BCHW.unbind(1)
    value = x_BCHW.amax(dim=1)
    chroma = value - x_BCHW.amin(dim=1)
    safe = torch.where(chroma == 0, 1.0, chroma)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue += 6 * turn_B[:, None, None]
    # channel n of a colour is value - chroma * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6
    turned = ((hue + n).remainder_(6) for n in (5, 3, 1))
    parts = [value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1) for k in turned]
    return torch.stack(parts, dim=1)


def greyscale(x_BCHW: Tensor) -> Tensor:
    """Return the grey of each pixel in all three channels."""
    return _luma(x_BCHW).expand(-1, 3, -1, -1)


def _blend(x_BCHW: Tensor, other: Tensor, factor_B: Tensor) -> Tensor:
    return torch.lerp(other, x_BCHW, _column(factor_B)).clamp_(0, 1)


def _luma(x_BCHW: Tensor) -> Tensor:
    red, green, blue = x_BCHW.unbind(1)
    grey_BHW = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return grey_BHW.unsqueeze(1)


def _column(factor_B: Tensor) -> Tensor:
    return factor_B[:, None, None, None]
