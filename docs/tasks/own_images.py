"""A folder of images, a folder per class: made here, yours in their place."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import alkit


def draw(folder: Path) -> None:
    """Write 150 images of bars that lie and 150 of bars that stand, of any colour and place."""
    torch.manual_seed(0)
    for kind in ("lying", "standing"):
        (folder / kind).mkdir()
        for number in range(150):
            image = Image.new("RGB", (40, 40), "white")
            for at in torch.randint(2, 36, (3,)).tolist():
                colour = tuple(torch.randint(200, (3,)).tolist())
                ends = (4, at, 36, at) if kind == "lying" else (at, 4, at, 36)
                ImageDraw.Draw(image).line(ends, fill=colour, width=3)
            image.save(folder / kind / f"{number}.png")


def read(path: str) -> Image.Image:
    """Read any image as RGB; Pillow alone would clip 16 bits a pixel to white."""
    image = Image.open(path)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert("RGB")


with TemporaryDirectory() as home:
    draw(Path(home))
    to_tensor = [v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)]
    images = ImageFolder(home, transform=v2.Compose(to_tensor), loader=read)
    parts = random_split(images, [0.8, 0.1, 0.1], torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 2)),
    ]
    decays = partial(CosineAnnealingLR, T_max=15)
    record = alkit.fit(
        blocks, *parts, method="al_pipeline", lr=0.003, epochs=15, scheduler=decays, progress=False
    )
    print(record.history[["epoch", "loss", "val_acc"]].tail(3).round(2).to_string(index=False))
    print(f"test accuracy {record.test_acc:.2f} of {len(record.test_correct)} images")
