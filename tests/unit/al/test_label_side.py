"""The label side alone: the published recipe stalls, the cures do not."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AE
from alkit.al.recipes import find_recipe
from studies.al import label_training as labels

ORIGINAL = find_recipe("original", "images")


def _trained(recipe, classes=200, epochs=1, steps=60, levels=1, lr=1e-3):
    torch.manual_seed(0)
    stack = labels.stack(recipe, classes, levels)
    return labels.train_labels(stack, classes, epochs=epochs, steps=steps, batch_size=128, lr=lr)


def test_constant_losses():
    """What one prediction for all classes can have at best, by formula."""
    entropy = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    expected = {F.mse_loss: 0.09, F.cross_entropy: math.log(10), F.l1_loss: math.nan}
    expected |= {F.binary_cross_entropy_with_logits: entropy}
    for loss, least in expected.items():
        (level,) = labels.levels_of([AE(nn.Identity(), nn.Identity(), loss)], 10)
        assert level["constant"] == pytest.approx(least, rel=1e-4, nan_ok=True)
        assert level["loss"] == pytest.approx(loss(torch.eye(10), torch.eye(10)).item())


def test_the_published_label_autoencoder_falls_to_the_constant_and_stays():
    history = _trained(ORIGINAL, epochs=2, steps=300, lr=1e-4)
    assert history.stalled.all()
    assert history.constant.iloc[0] == pytest.approx(0.004975, abs=1e-6)
    assert (history.right < 0.05).all()


@pytest.mark.parametrize(
    "cure",
    [
        {"first_loss": "cross_entropy", "decoders": ("none", "sigmoid"), "encoder": "tanh"},
        {"codes": "fixed", "first_loss": "cross_entropy"},
    ],
    ids=["cross-entropy", "fixed codes"],
)
def test_the_cures_leave_the_constant_in_the_first_epoch(cure):
    history = _trained(replace(ORIGINAL, **cure), steps=100)
    assert not history.stalled.any()
    assert history.right.iloc[-1] > 0.9
