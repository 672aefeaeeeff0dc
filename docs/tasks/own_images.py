"""A folder of images, a folder per class: made here, yours in their place."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image, ImageDraw
from torch import nn

import alkit


def draw(folder: Path) -> None:
    """Write 100 images of bars that lie and 100 of bars that stand, of any colour and place."""
    torch.manual_seed(0)
    for kind in ("lying", "standing"):
        (folder / kind).mkdir()
        for number in range(100):
            image = Image.new("RGB", (40, 40), "white")
            for at in torch.randint(2, 36, (3,)).tolist():
                colour = tuple(torch.randint(200, (3,)).tolist())
                ends = (4, at, 36, at) if kind == "lying" else (at, 4, at, 36)
                ImageDraw.Draw(image).line(ends, fill=colour, width=3)
            image.save(folder / kind / f"{number}.png")


with TemporaryDirectory() as home:
    draw(Path(home))
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 2)),
    ]
    record = alkit.fit(blocks, Path(home), method="al_pipeline", lr=0.01, epochs=8, progress=False)
    print(record.history[["epoch", "loss", "val_acc"]].tail(3).round(2).to_string(index=False))
    print(f"test accuracy {record.test_acc:.2f} of {len(record.test_correct)} images")
