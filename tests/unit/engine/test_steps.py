"""Clipping and autocast, against plain torch; losses that are looked at late."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.data.given import as_splits
from alkit.engine.losses import check_finite
from tests.helpers import differences, state_of
from tests.make import labelled, tanh_blocks

PARTS = labelled(28), labelled(12, seed=1), labelled(8, seed=2)  # seven batches of four
SGD = torch.optim.SGD


def fitted(method, **options):
    options = {"batch_size": 4, "lr": 0.05, "optimizer": SGD, "progress": False} | options
    return alkit.fit(tanh_blocks(3), *PARTS, method=method, **options).model


def plain(clip):
    """Train by hand on the same batches."""
    model = nn.Sequential(*tanh_blocks(3))
    optimizer = SGD(model.parameters(), lr=0.05)
    for a, b in as_splits(*PARTS).train.batches(4, seed=0, epoch=0):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("clip", [None, 0.05])
def test_backprop_s_steps_are_those_of_a_plain_loop(clip):
    made = alkit.clipped(SGD, clip) if clip else SGD
    for own in ({"clip": clip}, {"optimizer": made}):
        for one, wanted in zip(fitted("bp", **own).parameters(), plain(clip), strict=True):
            assert torch.allclose(one, wanted, atol=1e-6)


@pytest.mark.parametrize("method", ["al_pipeline", "pipedream"])
def test_hooks_of_optimisers_go_along_to_ranks(method):
    """Pickling an optimiser loses them, and with them the norm."""
    options = {"optimizer": alkit.clipped(SGD, 0.01), "cuts": [2]}
    here, there = (fitted(method, **options, **own) for own in ({}, {"ranks": 2}))
    assert not differences(state_of(here), state_of(there))
    assert differences(state_of(here), state_of(fitted(method, cuts=[2])))


def test_what_a_method_cannot_do_is_said():
    with pytest.raises(ValueError, match="clip is 0: it must be finite and positive"):
        fitted("bp", clip=0)
    with pytest.raises(TypeError, match="ddg takes no clip=: give optimizer="):
        fitted("ddg", clip=1.0)


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
