"""Families as BP and AL models: published totals, recipes, padding, clear errors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from alkit import set_device, to_al, train_epoch
from alkit.al.bridges import flat, pool
from alkit.al.recipes import FIXED_CODES, RECIPES, Recipe, find_recipe
from alkit.data.parts import DataSet, Part
from alkit.engine.rates import rates
from studies.al import families
from studies.al.networks import lstm_al, resnet18_al, transformer, vgg_al
from tests.unit.al.helpers import texts

TEXT_SIZES = {
    "lstm": {"blocks": 2, "width": 8, "hidden": 6},
    "transformer": {"blocks": 2, "width": 8, "heads": 2, "ffn": 8},
}


def _texts(count=24, tokens=7):
    x = torch.randint(2, 30, (count, tokens), generator=torch.Generator().manual_seed(0))
    x[1::2, 4:] = 0
    return texts(x)


def _images(count=24):
    x = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    part = Part(x, torch.arange(count) % 3, 3)
    return DataSet("made-up images", part, part, part, 3, ("a", "b", "c"))


def _sizes(family):
    return TEXT_SIZES.get(family, {"width": 0.0625})


def _data(family):
    return _texts() if family in TEXT_SIZES else _images()


@pytest.mark.parametrize(
    ("blocks", "counts"),
    [
        (vgg_al, {"effective": 11_152_784, "affiliated": 110_213_900, "total": 121_366_684}),
        (resnet18_al, {"effective": 23_541_788, "affiliated": 185_134_300, "total": 208_676_088}),
    ],
    ids=["vgg", "resnet"],
)
def test_published_totals_of_image_models(blocks, counts):
    with torch.device("meta"):  # shapes without numbers: these models are large
        model = to_al(blocks(), 200, torch.zeros(2, 3, 32, 32), recipe="original")
    assert model.parameter_counts() == counts
    first = model[0].parameter_counts()
    assert (first["b"], first["g"], first["h"]) == (66_237_700, 140_700, 140_200)


def final_states(s):
    """Pool as published: the sum of both directions' final states, (B, H)."""
    return s[2][0].sum(0)


SAMPLE = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(("classes", "total"), [(2, 13_533_634), (4, 13_534_148), (14, 13_536_718)])
def test_published_totals_of_lstms(classes, total):
    pools = [pool, *[final_states] * 3]
    model = to_al(lstm_al(30_000), classes, SAMPLE, recipe="original", pool=pools)
    counts = model.parameter_counts()
    assert counts["total"] == total
    if classes == 4:
        assert counts == {"effective": 13_379_652, "affiliated": 154_496, "total": 13_534_148}


def test_published_totals_of_transformers_hold_with_their_unused_parameters():
    """The published code registers another 516,556 parameters a block, and never uses them."""
    sizes = {"blocks": 3, "width": 300, "heads": 6, "ffn": 256, "dropout": 0.3}
    counts = to_al(transformer(30_000, **sizes), 4, SAMPLE, recipe="original").parameter_counts()
    assert counts["total"] + 3 * 516_556 == 12_355_476
    assert counts["affiliated"] == 165_760


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_family_trains_with_every_recipe(family, recipe):
    data = _data(family)
    model = families.model(family, data, "al", recipe=recipe, **_sizes(family))
    record = train_epoch(model, data.train.batches(12), "al")
    assert torch.isfinite(record.losses).all()
    x, _ = next(iter(data.test.batches(4)))
    for depth in range(1, len(model) + 1):
        assert model.predict(x, depth).shape == (4, data.num_classes)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_twins_start_from_the_same_blocks(family):
    models = []
    for method in ("bp", "al"):
        torch.manual_seed(0)
        models.append(families.model(family, _data(family), method, **_sizes(family)))
    bp, al = models
    for block, layer in zip(bp, al, strict=False):
        pairs = zip(block.parameters(), layer.enc.f.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert len(bp) == len(al) + 1
    x, _ = next(iter(_data(family).test.batches(4)))
    before = bp.predict(x)
    assert torch.equal(set_device(bp, ["cpu"] * len(bp)).predict(x), before)


@pytest.mark.parametrize("family", TEXT_SIZES)
@pytest.mark.parametrize("method", ["bp", "al"])
def test_padding_changes_nothing(family, method):
    torch.manual_seed(0)
    model = families.model(family, _texts(), method, **_sizes(family))
    short, long = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6, 7, 0, 0]])
    depths = [()] if method == "bp" else [(depth,) for depth in range(1, len(model) + 1)]
    for depth in depths:
        one, other = (model.predict((tokens, tokens > 0), *depth) for tokens in (short, long))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_widths_of_the_original_recipe_follow_the_network():
    model = families.model("vgg", _images(), "al", recipe="original", width=0.0625)
    widths = [part.out_features for part in model[0].enc.b.body if isinstance(part, nn.Linear)]
    assert widths == [62, 44]


def test_embedding_starts_from_a_copy_of_the_vectors():
    vectors = torch.randn(30, 8)
    data = _texts()
    model = families.model("lstm", data, "al", vectors=vectors, blocks=1, hidden=4)
    assert torch.equal(model[0].enc.f.table.weight, vectors)
    before = vectors.clone()
    train_epoch(model, data.train.batches(12), "local")
    assert torch.equal(vectors, before)
    assert not torch.equal(model[0].enc.f.table.weight, vectors)


REFUSED = [
    (lambda: families.model("vgg", _images(), "dtp", width=0.0625), "method is 'dtp'"),
    (
        lambda: find_recipe("best", "images"),
        "recipe is 'best': give detached, coupled, original, mse",
    ),
    (lambda: find_recipe("fixed_codes", "images"), "method='local', rule='fixed_codes'"),
    (lambda: Recipe("mine", codes="some"), "codes is 'some'"),
    (lambda: to_al(transformer(30), 3, SAMPLE, pool=[flat, pool]), "shorter than argument 1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_errors_name_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_recipes_pick_their_losses():
    fixed = FIXED_CODES["images"]
    assert fixed.associated_loss().scale == 10.0
    assert replace(fixed, associated="mse").associated_loss() is nn.functional.mse_loss
    original = find_recipe("original", "images")
    assert original.autoencoder_loss(0) is nn.functional.mse_loss
    assert find_recipe("original", "texts").autoencoder_loss(0) is nn.functional.cross_entropy
    assert find_recipe(fixed, "texts") is fixed


@pytest.mark.parametrize(("method", "expected"), [("al", 2e-3), ("bp", 1e-3)])
def test_bp_has_a_rate_of_its_own_beside_modern(method, expected):
    for options, rate in (({}, expected), ({"lr": 0.5}, 0.5)):
        model = families.model("vgg", _images(), method, width=0.0625, **options)
        assert set(rates(model).values()) == {rate}
