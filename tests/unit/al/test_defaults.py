"""What is made before training follows the network, never the caller's default type."""

import pytest
import torch
from torch import nn

import alkit
from tests.helpers import differences

PICTURES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 3
CASES = [("al_pipeline", {"recipe": recipe}) for recipe in ("detached", "original", "mse")]
CASES += [("local", {"rule": rule}) for rule in ("linear", "cosine", "fixed_codes")]
CASES += [("bp", {"num_classes": 5})]  # a head is made


@pytest.mark.parametrize(("method", "settings"), CASES)
@pytest.mark.parametrize("kind", ["pictures", "rows"])
def test_the_default_type_changes_no_bit(kind, method, settings):
    found = []
    for default in (torch.float32, torch.float64):
        torch.manual_seed(0)
        convs = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()
        inner = convs if kind == "pictures" else (nn.Flatten(), nn.Linear(64, 64), nn.Tanh())
        net = nn.Sequential(*inner, nn.Linear(64, 3))
        torch.set_default_dtype(default)
        try:
            options = {"epochs": 2, "batch_size": 8, "progress": False, **settings}
            model = alkit.fit(net, (PICTURES, LABELS), method=method, **options).model
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(dict(model.state_dict()))
    assert {t.dtype for t in found[1].values()} <= {torch.float32, torch.int64}
    assert not differences(*found)
