"""Initial weights have the spread that their scheme promises."""

import pytest
import torch
from torch import nn

from alkit.models.initial import initialise


@pytest.mark.parametrize(
    ("scheme", "sd"),
    [("kaiming", (2 / 400) ** 0.5), ("xavier", (2 / 1000) ** 0.5), ("normal", 0.02)],
)
def test_spread(scheme, sd):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(400, 600), nn.BatchNorm1d(600), nn.Conv2d(100, 3, 2))
    assert initialise(layer, scheme) is layer
    assert layer[0].weight.std().item() == pytest.approx(sd, rel=0.02)
    assert not layer[0].bias.any()
    assert not layer[2].bias.any()
    assert (layer[1].weight == 1).all()


def test_an_unknown_scheme_is_named_with_those_that_there_are():
    with pytest.raises(
        ValueError, match="'he' of initial weights; there are kaiming, xavier, normal"
    ):
        initialise(nn.Linear(1, 1), "he")
