"""Randomness follows its key, in every operator and whatever the global generator does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.base.seeds import generator_for, seed_for
from alkit.engine.random import random_from
from studies.al.networks import EncoderBlock

X = torch.randn(4, 5, 8)


# made once, so that only what a forward draws is left to differ
ATTENTION = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
LSTM = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
DRAWS = {
    "dropout": lambda: F.dropout(X, 0.5),
    "dropout2d": lambda: F.dropout2d(X[None], 0.5),
    "rand": lambda: torch.rand(5),
    "randn_like": lambda: torch.randn_like(X),
    "randint": lambda: torch.randint(2, 10**6, (5,)),
    "randperm": lambda: torch.randperm(50),
    "normal_": lambda: torch.empty(5).normal_(),
    "multinomial": lambda: torch.multinomial(torch.ones(50), 9),
    "attention": lambda: ATTENTION(X, X, X)[0],
    "lstm": lambda: LSTM(X)[0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_a_function_of_the_key_and_leaves_the_global_generator_alone(name):
    drawn = []
    for key in ((0, 1), (0, 1), (0, 2)):
        torch.rand(3)  # the global generator moves on in between
        before = torch.get_rng_state()
        with random_from(*key):
            drawn.append(DRAWS[name]())
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(drawn[0], drawn[1])
    assert name == "lstm" or not torch.equal(drawn[0], drawn[2])


def test_seeds_are_spread_and_stable():
    seeds = {seed_for(a, b) for a in range(40) for b in range(40)}
    assert len(seeds) == 1600
    assert seed_for(0, 1, 2) == seed_for(0, 1, 2) < 2**63
    assert torch.equal(
        torch.rand(2, generator=generator_for(1)), torch.rand(2, generator=generator_for(1))
    )


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.7, 1.0])
def test_coins_are_fair_and_follow_the_key(p):
    def draw(key):
        with random_from(key):
            return torch.empty(7, 100, 101).bernoulli_(p)

    coins = draw(1)
    assert set(coins.unique().tolist()) <= {0.0, 1.0}
    spread = (p * (1 - p) / coins.numel()) ** 0.5
    assert abs(coins.mean().item() - p) <= 5 * spread + 1e-5
    # neighbours, also those cut from the same number, are independent
    flat = coins.flatten()
    for step in (1, 2, 3, 4):
        both = (flat[:-step] * flat[step:]).mean().item()
        assert abs(both - p * p) <= 6 * spread + 1e-4
    assert torch.equal(coins, draw(1))
    if 0 < p < 1:
        assert not torch.equal(coins, draw(2))


def test_what_needs_no_chance_of_ours_is_left_alone():
    """Attention without dropout, a caller's own generator; what can't be keyed is refused."""
    q, x = torch.randn(2, 1, 4, 8), torch.randn(2, 3, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(q, q, q), torch.rand(3, generator=torch.Generator().manual_seed(5))
    block = EncoderBlock(8, 2, 16, dropout=0.0)
    unkeyed = torch.ops.aten._scaled_dot_product_efficient_attention
    with random_from(0):
        assert torch.equal(attend(q, q, q, dropout_p=0.0), expected[0])
        own = torch.rand(3, generator=torch.Generator().manual_seed(5))
        assert torch.equal(own, expected[1])
        block((x, torch.ones(2, 3, dtype=torch.bool)))[0].sum().backward()
        with pytest.raises(RuntimeError, match="outside of torch.compile"):
            unkeyed(q, q, q, None, False, 0.5)
        with pytest.raises(ValueError, match=r"p is 1\.5"):
            torch.empty(3).bernoulli_(1.5)
