"""Notebook 26's variants begin alike, and their steps are equally long."""

import pytest
import torch

from studies.dtp import runs as training
from tests.unit.dtp.helpers import made_set


@pytest.fixture(scope="module")
def data():
    return made_set()


@pytest.mark.parametrize("name", ["bp", "dtp", "fa", "dfa", "shallow"])
def test_variants_take_backprop_s_weights_and_one_length_of_step(data, name):
    """One step at lr: the last block's, whose gradient all variants share, moves equally far."""
    one = data.subset(train=30)  # one batch
    options = {"epochs": 1, "iterations": 1, "weight_decay": 0.0, "lr": 0.01, "beta": 0.5}
    own, bp = (training.trained(each, "tiny", one, 0, **options) for each in (name, "bp"))
    own, bp = own.model.state_dict(), bp.model.state_dict()
    last = "blocks.3.pieces.1.own.weight"
    torch.testing.assert_close(own[last], bp[last], rtol=1e-5, atol=1e-6)
    first = "blocks.0.pieces.0.own.weight"
    assert torch.allclose(own[first], bp[first], rtol=1e-6, atol=1e-8) == (name == "bp")
