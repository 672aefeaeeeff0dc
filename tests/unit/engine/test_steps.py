"""Clipping and autocast, against plain torch; losses that are looked at late."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.data.given import as_splits
from alkit.engine.losses import check_finite
from tests.helpers import differences, state_of

x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:28], y[:28]), (x[28:40], y[28:40]), (x[40:], y[40:])  # seven batches of four


def blocks(dropout=0.0):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3)]
    return [*hidden, nn.Linear(6, 3)]


def fitted(method, **options):
    options = {"batch_size": 4, "lr": 0.05, "optimizer": torch.optim.SGD} | options
    return alkit.fit(blocks(), *PARTS, method=method, progress=False, **options)


def plain(clip=None):
    """Train by hand on the same batches."""
    model = nn.Sequential(*blocks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for a, b in as_splits(*PARTS).train.batches(4, seed=0, epoch=0):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("by", ["setting", "optimizer"])
def test_backprop_s_steps_are_those_of_a_plain_loop(clip, by):
    own = {"clip": clip} if by == "setting" else {}
    made = alkit.clipped(torch.optim.SGD, clip) if clip and not own else torch.optim.SGD
    found = alkit.fit(
        blocks(), *PARTS, method="bp", batch_size=4, lr=0.05, optimizer=made, progress=False, **own
    )
    for one, wanted in zip(found.model.parameters(), plain(clip), strict=True):
        assert torch.allclose(one, wanted, atol=1e-6)


def test_al_s_modes_and_free_workers_step_alike():
    methods = {"al": {}, "al_m": {}, "al_fm": {}, "al_pipeline": {"workers": 2}}
    optimizer = alkit.clipped(torch.optim.SGD, 0.01)
    states = [state_of(fitted(m, optimizer=optimizer, **own).model) for m, own in methods.items()]
    assert all(differences(states[0], other) == [] for other in states[1:])
    assert differences(states[0], state_of(fitted("al").model))


@pytest.mark.parametrize("method", ["al_pipeline", "pipedream"])
def test_hooks_of_optimisers_go_along_to_ranks(method):
    """Pickling an optimiser loses them, and with them the norm."""
    options = {"optimizer": alkit.clipped(torch.optim.SGD, 0.01), "cuts": [2]}
    here, there = (fitted(method, **options, **own).model for own in ({}, {"ranks": 2}))
    assert differences(state_of(here), state_of(there)) == []
    free = fitted(method, optimizer=torch.optim.SGD, cuts=[2]).model
    assert differences(state_of(here), state_of(free))


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("bp", {"clip": 0}, "clip is 0: it must be finite and positive"),
        ("ddg", {"clip": 1.0}, "ddg takes no clip=: give optimizer="),
    ],
)
def test_what_a_method_cannot_do_is_said(method, options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        fitted(method, **options)


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "pipedream", "elastic"])
def test_float16_without_a_scaler_is_refused(method):
    with torch.autocast("cpu", torch.float16):
        with pytest.raises(ValueError, match="autocast is on for float16.*give torch.bfloat16"):
            fitted(method)


def test_a_loss_that_is_not_finite_is_named():
    losses = torch.ones(6, 2, 2)
    check_finite(losses, None, losses[:, 0, 0])
    losses[4, 1, 0], losses[5, 0, 0] = torch.nan, torch.inf
    said = r"the loss is nan at batch 4 of the epoch, layer and part \[1, 0\]: lower"
    with pytest.raises(FloatingPointError, match=said):
        check_finite(None, losses)
    with pytest.raises(FloatingPointError, match="the loss is inf at batch 5 of the epoch: lower"):
        check_finite(losses[:, :1, :1])
