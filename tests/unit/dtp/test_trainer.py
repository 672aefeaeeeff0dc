"""A trainer alone: it takes batches, and goes on from its state as if it had never stopped."""

import copy
from dataclasses import replace

import pytest
import torch

from alkit import dtp
from alkit.dtp.record import digest
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trainer
from tests.unit.dtp.helpers import made_set

SETTINGS = Settings(iterations=2, feedback_lr=1e-4, lr=1e-3)


def trainer(method):
    settings = replace(SETTINGS, method=method)
    return Trainer(dtp.network("tiny"), settings, made_set().train.x[:8], owners=[0, 0, 0])


@pytest.mark.parametrize("method", ["dtp", "ddtp", "bp"])
def test_a_trainer_goes_on_from_its_state(method):
    batches = list(made_set().train.batches(24, seed=0))
    whole, begun, resumed = (trainer(method) for _ in range(3))
    at_once = whole.train(batches)
    first = begun.train(batches[:2])
    resumed.load(copy.deepcopy(begun.state()))
    second = resumed.train(batches[2:], first_step=2)
    assert first.losses + second.losses == at_once.losses
    assert digest(resumed.net) == digest(whole.net)
    for n, losses in at_once.feedback_losses.items():
        parts = first.feedback_losses[n], second.feedback_losses[n]
        assert torch.equal(torch.cat(parts), losses)


def test_the_rate_is_the_next_step_s():
    own = trainer("bp")
    before = digest(own.net)
    own.lr = 0.0
    own.train([next(iter(made_set().train.batches(24, seed=0)))])
    assert digest(own.net) == before
