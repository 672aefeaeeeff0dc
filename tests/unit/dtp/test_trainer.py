"""A trainer alone: it takes batches, and goes on from its state as if it had never stopped."""

import copy
from dataclasses import replace

import pytest
import torch

import alkit
from alkit import dtp
from alkit.dtp.fit import digest
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer
from tests.unit.dtp.helpers import made_set

SETTINGS = Settings(iterations=2, feedback_lr=1e-4, lr=1e-3, owners=[0, 0, 0])
STEPS = 4


def trainer(method):
    settings = replace(SETTINGS, method=method)
    return Trainer(dtp.network("tiny"), settings, STEPS)


@pytest.mark.parametrize("method", ["dtp", "tp"])
def test_a_trainer_goes_on_from_its_state(method):
    batches = list(made_set().train.batches(24, seed=0))
    whole, begun, resumed = (trainer(method) for _ in range(3))
    at_once = whole.train(batches)
    first = begun.train(batches[:2])
    resumed.load(copy.deepcopy(begun.state()))
    second = resumed.train(batches[2:])
    assert torch.equal(torch.cat([first.losses, second.losses]), at_once.losses)
    assert digest(resumed.model) == digest(whole.model)
    for n, (losses,) in whole.feedback_losses.items():
        assert torch.equal(torch.cat(resumed.feedback_losses[n]), losses)


def test_the_rate_is_the_next_step_s():
    own, batch = trainer("dtp"), next(iter(made_set().train.batches(24, seed=0)))
    own.train([batch] * STEPS)
    forward = [p.detach().clone() for block in own.model for p in block.forward_parameters()]
    own.train([batch])  # a step after the last, where the cosine is 0
    assert own.lr == 0.0
    after = [p for block in own.model for p in block.forward_parameters()]
    assert all(map(torch.equal, forward, after))


def fitted(workers=1, **options):
    own = SETTINGS.options() | {"progress": False, "workers": workers} | options
    return alkit.fit(dtp.network("tiny"), made_set(), **own)
