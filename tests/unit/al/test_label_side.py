"""The label side alone: the published recipe stalls, the cures do not, and the detector tells."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AE, to_al, to_local
from alkit.al.recipes import find_recipe
from studies.al import label_training as labels
from tests.helpers import differences
from tests.unit.al.helpers import convnet

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


def test_deeper_levels_see_less_of_the_classes():
    torch.manual_seed(0)
    found = labels.levels_of(labels.stack(ORIGINAL, 200, 4), 200)
    spreads = [level["spread"] for level in found]
    assert all(below > 4 * above for below, above in zip(spreads, spreads[1:], strict=False))


def _states(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def _stalled(model):
    return labels.stalled(10)({}, model)["stalled"]


def test_the_detector_counts_layers_and_changes_nothing():
    sample = torch.zeros(2, 1, 8, 8)
    model = to_al(convnet(widths=(4, 4)), 10, sample, recipe="original")
    for layer in model:  # untrained biases are at 0.5, worse than the constant
        assert layer.ae.h[-1](torch.zeros(1)).item() == 0.5
    model[0].ae.g = nn.Sequential(model[0].ae.g, nn.BatchNorm1d(700))
    before, state = _states(model), torch.get_rng_state()
    assert _stalled(model) == 2
    assert not differences(before, _states(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0].ae.g.training
    frozen = to_local(convnet(widths=(4, 4)), 10, sample, rule="fixed_codes")
    assert _stalled(frozen) == 0
    assert _stalled(model.double()) == 2


def test_training_ends_when_all_levels_decode():
    recipe = replace(ORIGINAL, encoder="tanh", decoders=("none", "none"))
    cure = labels.Variant(replace(recipe, first_loss="cross_entropy"))
    options = {"epochs": 12, "steps": 30, "batch_size": 32, "lr": 3e-3}
    rows = labels.train_labels(cure.build(10, 32, levels=2), 10, **options)
    ended = rows.groupby("epoch").agg(right=("right", "min"), stalled=("stalled", "any"))
    assert [*((ended.right == 1) & ~ended.stalled)] == [*[False] * (len(ended) - 1), True]
    assert len(ended) < 12


def test_milestones():
    rows = {
        "epoch": [1, 2, 3, 4] * 3,
        "level": [1] * 4 + [2] * 4 + [3] * 4,
        "stalled": [True, False, True, False] + [False] * 4 + [True] * 4,
        "right": [0.1, 1.0, 0.9, 1.0] + [0.1, 0.2, 0.3, 1.0] + [0.1] * 4,
    }
    first, second, third = labels.milestones(pd.DataFrame(rows)).to_dict("records")
    assert first == {"level": 1, "escape": 4, "perfect": 2, "epochs": 4}
    assert second == {"level": 2, "escape": 4, "perfect": 4, "epochs": 4}  # not before level 1
    assert math.isnan(third["escape"])
    assert math.isnan(third["perfect"])
    never = pd.DataFrame({"epoch": [1], "level": [1], "stalled": [False], "right": [1.0]})
    assert labels.milestones(never).escape.tolist() == [1]


def test_a_variant_is_built_from_its_seed():
    def halved(ae):
        with torch.no_grad():
            for parameter in ae.parameters():
                parameter.mul_(0.5)

    plain, scaled = labels.Variant(ORIGINAL), labels.Variant(ORIGINAL, levels=2, init=halved)
    before = torch.get_rng_state()
    (first,) = plain.build(10, 16, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    (again,), second = plain.build(10, 16, seed=3), scaled.build(10, 16, seed=3)
    (other,) = plain.build(10, 16, seed=4)
    assert torch.equal(first.g[0].weight, again.g[0].weight)
    assert not torch.equal(first.g[0].weight, other.g[0].weight)
    assert torch.equal(0.5 * first.g[0].weight, second[0].g[0].weight)
    assert len(second) == 2
    assert len(scaled.build(10, 16, levels=3)) == 3
