"""A look at a data set before anything is trained: some samples, and what they are like."""

import numpy as np
import torch
from torch import Tensor

from alkit.data.extras import extra
from alkit.data.parts import DataSet
from alkit.figures.titles import title, value
from alkit.figures.viz import WIDE

with extra("notebooks", "a preview"):
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure


def preview(data: DataSet, samples: int = 12) -> Figure:
    """Draw the first training images with their classes, or how long texts are and of which class.

    Args:
        samples: images shown, at most.
    """
    return _texts(data) if data.train.is_text else _images(data, samples)


def _images(data: DataSet, samples: int) -> Figure:
    shown = min(samples, len(data.train))
    images, y = next(iter(data.train.batches(shown, shuffle=False)))
    fig, axes = plt.subplots(2, (shown + 1) // 2, figsize=(WIDE[0], 3.2), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, image, label in zip(axes.flat, images, y.tolist(), strict=False):
        ax.imshow(_pixels(image), cmap="gray")
        name = data.class_names[label].split(",")[0][:14]
        ax.text(0, 1.03, name, transform=ax.transAxes, fontsize=7)
    size = "x".join(map(str, images.shape[2:]))
    count = f"{len(data.train):,}"
    title(fig, "{data}: {n} training images of {size}", data=data.name, n=count, size=size)
    return fig


def _texts(data: DataSet) -> Figure:
    lengths = (data.train.x != data.train.pad).sum(1)
    median, longest = int(lengths.median()), data.train.x.shape[1]
    fig, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    wide = -(-longest // 30)  # words per bar
    left.hist(lengths.numpy(), bins=np.arange(0.5, longest + wide, wide), color="0.5")
    cut = (lengths == longest).float().mean().item()
    left.set(xlabel="words of a training text", ylabel="texts")
    counts = torch.bincount(data.train.y, minlength=data.num_classes)
    right.barh(list(data.class_names), counts.numpy(), color="0.5")
    right.invert_yaxis()
    right.set(xlabel="training texts", xlim=(0, 1.1 * int(counts.max())))
    left.axvline(median, color="0.2")
    words = "{data}: the median text has {median:.0f} words; {cut} are cut to {longest}"
    share, most = f"{cut:.0%}", str(longest)
    title(fig, words, median=value(median), data=data.name, cut=share, longest=most)
    return fig


def _pixels(image_CHW: Tensor) -> np.ndarray:
    low, high = image_CHW.min(), image_CHW.max()
    scaled = (image_CHW - low) / (high - low).clamp(min=1e-6)
    return (scaled.permute(1, 2, 0) if len(scaled) == 3 else scaled[0]).numpy()
