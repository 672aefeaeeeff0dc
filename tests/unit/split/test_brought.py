"""What users bring to split learning, models, samples, schedulers: it is trained on as it is, or
refused in a sentence."""

import pytest
import torch
from torch import nn

import alkit

torch.manual_seed(1)
X = torch.randn(66, 8)
Y = X[:, :3].argmax(1)


def network(*between: nn.Module, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), *between, nn.ReLU(), nn.Linear(width, 3))


def fit(model=None, data=(X, Y), **options):
    options = {"method": "splitfed", "lr": 0.01, "progress": False} | options
    return alkit.fit(model or network(), data, **options)


def losses(*given, **options):
    return fit(*given, **options).history.loss.tolist()


class Floats(nn.Module):
    def forward(self, x):
        return x.float()


def test_bytes_that_are_no_images_are_taken_as_they_are():
    data = (X.abs() * 60).byte()[:64], Y[:64]
    wanted, found = (
        losses(nn.Sequential(Floats(), *network()), data, lr=0.0, method=method, workers=workers)
        for method, workers in (("bp", None), ("splitfed", 1))
    )
    assert found == pytest.approx(wanted, rel=1e-5)
