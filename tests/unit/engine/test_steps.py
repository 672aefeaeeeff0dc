"""Steps of optimisers: rates of torch's schedulers in every method, and clips, by plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import alkit
from alkit.data.given import as_splits
from tests.make import labelled, tanh_blocks

PARTS = labelled(28), labelled(12, seed=1), labelled(8, seed=2)  # seven batches of four
SGD = torch.optim.SGD


def fitted(method, *parts, **options):
    options = {"batch_size": 4, "lr": 0.05, "optimizer": SGD, "progress": False} | options
    return alkit.fit(tanh_blocks(3), *(parts or PARTS), method=method, **options)


METHODS = ("bp", "al", "al_pipeline", "pipedream", "fr", "1f1b", "gpipe", "elastic", "dtp")
BY_STEP = [0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4, 1e-5]
BY_EPOCH = [0.1] * 3 + [0.05] * 3 + [0.025] * 3
SCHEDULERS = {
    "epoch": (lambda own: lr_scheduler.ExponentialLR(own, gamma=0.5), BY_EPOCH),
    "batch": (alkit.each_batch(lambda own: lr_scheduler.StepLR(own, 2, gamma=0.1)), BY_STEP),
}


@pytest.mark.parametrize("every", SCHEDULERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_factory_of_torchs_schedulers_sets_the_rates_of_all_steps(method, every):
    """Of 20 samples in batches of 8, the last one smaller."""
    scheduler, expected = SCHEDULERS[every]
    kept = []

    def optimizer(parameters, lr):
        found, own = SGD(parameters, lr=lr), []
        kept.append(own)
        found.register_step_pre_hook(lambda made, *_: own.append(made.param_groups[0]["lr"]))
        return found

    options = {"optimizer": optimizer, "scheduler": scheduler, "lr": 0.1}
    record = fitted(method, labelled(20), batch_size=8, epochs=3, **options)
    rates = [own for own in kept if own]
    assert rates
    for own in rates:
        assert own == pytest.approx(expected, rel=1e-9)
    assert record.history.lr.tolist() == pytest.approx(expected[::3])


def plain(clip):
    """Train by hand on the same batches."""
    model = nn.Sequential(*tanh_blocks(3))
    optimizer = SGD(model.parameters(), lr=0.05)
    for a, b in as_splits(*PARTS).train.batches(4, seed=0, epoch=0):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return list(model.parameters())


def test_clipped_steps_are_those_of_a_plain_loop():
    for own in ({"clip": 0.05}, {"optimizer": alkit.clipped(SGD, 0.05)}):
        for one, wanted in zip(fitted("bp", **own).model.parameters(), plain(0.05), strict=True):
            assert torch.allclose(one, wanted, atol=1e-6)


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "pipedream", "elastic"])
def test_float16_without_a_scaler_is_refused(method):
    with torch.autocast("cpu", torch.float16):
        with pytest.raises(ValueError, match="autocast is on for float16.*give torch.bfloat16"):
            fitted(method)
