"""A table of texts and labels: here what docstrings say, yours in their place."""

import numpy
import pandas as pd
import torch
from torch import nn

import alkit
from alkit.data.text import PAD, clean, encode, vocabulary_of


def sentences(package: object) -> list[str]:
    """Return the first paragraph of every docstring of a package's names."""
    found = [getattr(package, name).__doc__ or "" for name in sorted(dir(package))]
    return [text for text in (each.strip().split("\n\n")[-1] for each in found) if len(text) > 40]


class Mean(nn.Module):
    """Numbers of words (B, T), 0 where a text has ended -> the mean of their vectors (B, D)."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights = (tokens != PAD).unsqueeze(2).float()
        return (self.table(tokens) * weights).sum(1) / weights.sum(1).clamp_min(1)


rows = [(text, name) for name, own in (("numpy", numpy), ("pandas", pd)) for text in sentences(own)]
frame = pd.DataFrame(rows, columns=["text", "label"]).sample(frac=1, random_state=0)
words = [clean(text) for text in frame.text]
vocabulary = vocabulary_of(words[:500])  # of the training part only
x, y = encode(words, vocabulary, max_len=40), torch.from_numpy(frame.label.factorize()[0])
parts = [(x[own], y[own]) for own in (slice(500), slice(500, 560), slice(560, None))]
print(f"{len(vocabulary)} words in {len(frame)} texts")
torch.manual_seed(0)
blocks = [
    Mean(len(vocabulary), 32),
    nn.Sequential(nn.Linear(32, 32), nn.ReLU()),
    nn.Linear(32, 2),
]
record = alkit.fit(blocks, *parts, method="al_pipeline", lr=0.01, epochs=6, progress=False)
print(f"test accuracy {record.test_acc:.2f} of {len(record.test_correct)} texts")
