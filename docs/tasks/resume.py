"""A run that is interrupted goes on, and ends in the bits of one that was not."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import alkit

data = alkit.datasets.load("digits")


class Interrupted(list):
    """Batches that are taken away in the third epoch, as a power cut would."""

    given = 0

    def __iter__(self) -> Iterator:
        for batch in super().__iter__():
            self.given += 1
            if self.given == 100:
                raise KeyboardInterrupt
            yield batch


def run(batches: list, checkpoint: Path | None = None) -> Any:
    """Train the same blocks for five epochs."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10)]
    asked = {"method": "pipedream", "epochs": 5, "lr": 0.1, "progress": False}
    return alkit.fit(blocks, batches, data.validation, checkpoint=checkpoint, **asked)


batches = list(data.train.batches(32))
with TemporaryDirectory() as home:
    path = Path(home) / "run.ckpt"
    try:
        run(Interrupted(batches), path)
    except KeyboardInterrupt:
        print("interrupted; the file is there:", path.exists())
    resumed = run(batches, path)
whole = run(batches)
print("epochs:", len(resumed.history), " accuracy:", round(resumed.history.val_acc.iloc[-1], 3))
same = zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
print("the bits of an uninterrupted run:", all(torch.equal(a, b) for a, b in same))
