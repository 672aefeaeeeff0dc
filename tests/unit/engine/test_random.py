"""Randomness follows its key, in every operator; what is said to draw nothing draws nothing."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.engine.random import may_draw, random_from

ROWS, TEXT, PICTURES = torch.randn(4, 8), torch.randn(4, 5, 8), torch.randn(4, 8, 8, 8)
# made once, so that only what a forward draws is left to differ
ATTENTION = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
LSTM = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
DRAWS = {
    "dropout": lambda: F.dropout(TEXT, 0.5),
    "dropout2d": lambda: F.dropout2d(PICTURES, 0.5),
    "rand": lambda: torch.rand(5),
    "randint": lambda: torch.randint(2, 10**6, (5,)),
    "randperm": lambda: torch.randperm(50),
    "multinomial": lambda: torch.multinomial(torch.ones(50), 9),
    "attention": lambda: ATTENTION(TEXT, TEXT, TEXT)[0],
    "lstm": lambda: LSTM(TEXT)[0],
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
    assert p in (0, 1) or not torch.equal(coins, draw(2))


def encoder(*options):
    return nn.TransformerEncoderLayer(8, 2, 16, *options, batch_first=True)


class OfAUser(nn.Module):
    def forward(self, x):
        return x + torch.rand(())


def changed(how):
    module = nn.Linear(8, 8)
    how(module)
    return module


QUIET = {
    "rows": (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.0)), ROWS),
    "pictures": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.MaxPool2d(2)), PICTURES),
    "attention": (encoder(0.0), TEXT),
    "named function": (encoder(0.0, "gelu"), TEXT),
    "states": (nn.LSTM(8, 8, 2, dropout=0.0, batch_first=True), TEXT),
    "a layer's halves": (alkit.to_al([nn.Linear(8, 8)], 3, ROWS)[0].enc, ROWS),
    "a bridge of pictures": (alkit.to_al([nn.Conv2d(8, 8, 1)], 3, PICTURES)[0].enc, PICTURES),
}
DRAWING = {
    "dropout": nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)),
    "attention": nn.MultiheadAttention(8, 2, dropout=0.1),
    "recurrent": nn.GRU(8, 8, 2, dropout=0.1),
    "a user's class": nn.Sequential(OfAUser()),
    "a hook": changed(lambda own: own.register_forward_hook(lambda *_: None)),
    "another forward": changed(lambda own: setattr(own, "forward", F.dropout)),
    "a user's function": encoder(0.0, lambda x: x + torch.rand(())),
    "a partial": encoder(0.0, functools.partial(F.dropout, p=0.5)),
    "a layer of a user's block": alkit.to_al([OfAUser(), nn.Linear(8, 8)], 3, ROWS)[0],
    "a rate that is set later": changed(lambda own: setattr(own, "drop_rates", [0.0, 0.1])),
    "a nest": changed(lambda own: setattr(own, "kept", ([0, torch.relu, F.dropout],))),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_said_to_draw_nothing_draws_nothing(name):
    module, x = QUIET[name]
    assert not may_draw(module)
    with random_from(0) as noise:
        module.train()(x)
    assert not noise.generators


@pytest.mark.parametrize("name", DRAWING)
def test_what_could_draw_is_said_to(name):
    assert may_draw(DRAWING[name])
