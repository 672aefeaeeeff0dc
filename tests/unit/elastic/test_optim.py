"""Rates in samples, decay where it belongs, and the guards of training."""

import math

import pytest

from alkit.elastic import Recipe
from alkit.elastic.optim import Optimizer
from alkit.elastic.stage import NotFinite
from tests.unit.elastic.helpers import images, make_bert, make_vit, train


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_rates_rise_once_and_reach_their_end_once(shape):
    recipe = Recipe(shape=shape, warmup=0.1)
    rates = [recipe.factor(samples, 1000) for samples in range(1, 1001)]
    assert rates[:100] == sorted(rates[:100])
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[99] == pytest.approx(1.0)
    assert [n for n, rate in enumerate(rates, 1) if rate == 0] == [1000]


def test_rates_count_samples_not_steps():
    recipe = Recipe(warmup=0.0)
    assert recipe.factor(500, 1000) == pytest.approx((1 + math.cos(math.pi / 2)) / 2)
    small = [recipe.factor(n, 1000) for n in range(100, 1001, 100)]
    large = [recipe.factor(n, 1000) for n in range(200, 1001, 200)]
    assert small[1::2] == large


def test_biases_norms_and_positions_do_not_decay():
    for network in (make_vit(), make_bert()):
        groups = Optimizer(network, Recipe(weight_decay=0.01)).inner.param_groups
        decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
        for unit in network.units:
            for name, parameter in unit.named_parameters():
                free = "bias" in name or "norm" in name or name in ("token", "positions")
                free = free or type(unit).__name__ == "LayerNorm"
                assert (id(parameter) in decayed) != free, name


def test_a_rate_that_blows_up_is_reported():
    recipe = Recipe("sgd", lr=1e200, clip=None, warmup=0.0)
    with pytest.raises(NotFinite, match="step 1.*rate is .*lower it"):
        train(make_vit(), images(), epochs=2, batch=8, recipe=recipe)


def test_published_decay_shrinks_a_network_and_the_shipped_recipe_does_not():
    """Learning rate 0.1 with decay 0.3 and momentum 0.9, as the published configuration has it."""
    norms = {}
    with pytest.warns(UserWarning, match="training will collapse to zero"):
        published = Recipe("sgd", lr=0.1, weight_decay=0.3, warmup=0.0, shape="constant")
    for name, recipe in (("published", published), ("ours", Recipe("sgd", lr=0.03))):
        options = {"epochs": 40, "batch": 24, "micro": 1, "freeze": "none"}
        found = train(make_vit(), images(), recipe=recipe, **options)
        matrices = [t for t in found.state.values() if t.dim() == 2]
        norms[name] = float(sum(t.square().sum() for t in matrices)) ** 0.5
    assert norms["published"] < 0.2 * norms["ours"]
