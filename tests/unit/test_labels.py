"""The label side alone: the published recipe stalls, the cures do not, and the detector tells."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from alkit import labels, to_al
from alkit.models.convnet import convnet
from alkit.recipes import find_recipe

ORIGINAL = find_recipe("original", "images")


def _trained(recipe, classes=200, epochs=1, steps=60, levels=1, lr=1e-3):
    torch.manual_seed(0)
    stack = labels.stack(recipe, classes, levels)
    return labels.train_labels(stack, classes, epochs=epochs, steps=steps, batch_size=128, lr=lr)


def test_constant_losses():
    rows = torch.eye(10)
    assert labels.constant_loss(F.mse_loss, rows) == pytest.approx(0.09)
    assert labels.constant_loss(F.cross_entropy, rows) == pytest.approx(math.log(10))
    entropy = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    bce = labels.constant_loss(F.binary_cross_entropy_with_logits, rows)
    assert bce == pytest.approx(entropy, rel=1e-4)
    assert math.isnan(labels.constant_loss(F.l1_loss, rows))


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


def test_deeper_levels_see_less_of_the_classes():
    torch.manual_seed(0)
    found = labels.levels_of(labels.stack(ORIGINAL, 200, 4), 200)
    spreads = [level.spread for level in found]
    assert all(below > 4 * above for below, above in zip(spreads, spreads[1:], strict=False))


def test_the_detector_names_the_layers():
    model = to_al(convnet(widths=(4, 4)), 10, torch.zeros(2, 1, 8, 8), recipe="original")
    for layer in model:  # untrained biases are at 0.5, worse than the constant
        assert layer.ae.h[-1](torch.zeros(1)).item() == 0.5
    assert labels.stalled(model, 10) == [1, 2]
    modern = to_al(convnet(widths=(4, 4)), 10, torch.zeros(2, 1, 8, 8))
    assert labels.stalled(modern, 10) == []
