"""A table of texts and labels: here what docstrings say, yours in their place."""

import numpy
import pandas as pd
import torch
from torch import nn

import alkit
from alkit.data.datasets import from_frame


def sentences(package: object) -> list[str]:
    """Return the first paragraph of every docstring of a package's names."""
    found = [getattr(package, name).__doc__ or "" for name in sorted(dir(package))]
    return [text for text in (each.strip().split("\n\n")[-1] for each in found) if len(text) > 40]


class Mean(nn.Module):
    """Words (B, T) and their mask -> the mean of their vectors (B, D)."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, text: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tokens, mask = text
        weights = mask.unsqueeze(2).float()
        return (self.table(tokens) * weights).sum(1) / weights.sum(1).clamp_min(1)


rows = [(text, name) for name, own in (("numpy", numpy), ("pandas", pd)) for text in sentences(own)]
data = from_frame(pd.DataFrame(rows, columns=["text", "label"]), max_len=40)
print(data.describe())
torch.manual_seed(0)
blocks = [
    Mean(len(data.vocabulary), 32),
    nn.Sequential(nn.Linear(32, 32), nn.ReLU()),
    nn.Linear(32, 2),
]
record = alkit.fit(blocks, data, method="al_pipeline", lr=0.01, epochs=6, progress=False)
print(f"test accuracy {record.test_acc:.2f} of {len(record.test_correct)} texts")
