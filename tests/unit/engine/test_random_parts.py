"""What is said to draw nothing draws nothing; what could draw is never said to draw nothing."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import alkit
from alkit.engine.random import may_draw, random_from

ROWS, TEXT, PICTURES = torch.randn(4, 8), torch.randn(4, 5, 8), torch.randn(4, 8, 8, 8)
TWO, FOUR = {"batch_first": True}, {"dim_feedforward": 16, "batch_first": True}
QUIET = {
    "rows": (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.0)), ROWS),
    "pictures": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.MaxPool2d(2)), PICTURES),
    "attention": (nn.TransformerEncoderLayer(8, 2, dropout=0.0, **FOUR), TEXT),
    "named function": (nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True), TEXT),
    "states": (nn.LSTM(8, 8, 2, dropout=0.0, **TWO), TEXT),
    "a layer's halves": (alkit.to_al([nn.Linear(8, 8)], 3, ROWS)[0].enc, ROWS),
    "a bridge of pictures": (alkit.to_al([nn.Conv2d(8, 8, 1)], 3, PICTURES)[0].enc, PICTURES),
}


class OfAUser(nn.Module):
    def forward(self, x):
        return x + torch.rand(())


def hooked(register):
    module = nn.Linear(8, 8)
    getattr(module, register)(lambda module, *values: None)
    return module


def replaced():
    module = nn.Linear(8, 8)
    module.forward = F.dropout
    return module


def parametrised():
    module = nn.Linear(8, 8)
    parametrize.register_parametrization(module, "weight", OfAUser())
    return module


def calling(function):
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, function, batch_first=True)


DRAWING = {
    "dropout": nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)),
    "attention": nn.MultiheadAttention(8, 2, dropout=0.1),
    "recurrent": nn.GRU(8, 8, 2, dropout=0.1),
    "rrelu": nn.RReLU(),
    "fractional": nn.FractionalMaxPool2d(2, 4),
    "a user's class": nn.Sequential(OfAUser()),
    "a hook": hooked("register_forward_hook"),
    "a hook before": hooked("register_forward_pre_hook"),
    "another forward": replaced(),
    "a parametrised weight": parametrised(),
    "a user's function": calling(lambda x: x + torch.rand(())),
    "a partial": calling(functools.partial(F.dropout, p=0.5)),
    "torch's dropout": calling(F.dropout),
    "torch's noise": calling(torch.rand_like),
    "a layer of a user's block": alkit.to_al([OfAUser(), nn.Linear(8, 8)], 3, ROWS)[0],
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


def test_all_classes_of_torch_that_draw_are_known():
    """Whoever is new in torch's modules and draws by an option has `p` or "drop" in its name."""
    known = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"}
    known |= {"FeatureAlphaDropout", "RReLU", "FractionalMaxPool2d", "FractionalMaxPool3d"}
    known |= {"MultiheadAttention", "RNN", "GRU", "LSTM", "RNNBase"}
    seen = set()
    for name, kind in vars(nn).items():
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            forward = vars(kind).get("forward")
            names = getattr(getattr(forward, "__code__", None), "co_names", ())
            words = "drop", "rand", "rrelu", "fractional"
            if any(word in used for used in names for word in words):
                seen.add(name)
    assert {"RReLU", "Dropout", "FractionalMaxPool2d"} <= seen
    assert {each for each in seen if not each.startswith("Transformer")} <= known, seen


def test_a_hook_of_all_modules_is_seen():
    block = nn.Linear(8, 8)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert may_draw(block)
    finally:
        handle.remove()
    assert not may_draw(block)


def test_what_a_part_keeps_in_lists_is_seen():
    pooled = alkit.to_local([nn.Linear(8, 8)], 3, ROWS)[0].enc.b
    assert not may_draw(pooled)
    for kept in ([torch.rand_like], {"after": lambda x: x}, ([0, torch.relu, F.dropout],)):
        pooled.kept = kept
        assert may_draw(pooled)
    pooled.kept = [1.0, torch.relu]
    assert not may_draw(pooled)
    pooled.drop_rates = [0.0, 0.1]
    assert may_draw(pooled)


def test_a_rate_that_is_set_later_is_seen():
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0))
    assert not may_draw(block)
    block[1].p = 0.5
    assert may_draw(block)
