"""A trainer alone: it takes batches, and goes on from its state as if it had never stopped."""

import copy

import pytest
import torch

from alkit import dtp
from alkit.data.given import as_splits
from alkit.dtp.fit import digest
from alkit.dtp.trainer import Trainer
from alkit.engine.plan import Plan
from tests.unit.dtp.helpers import made_set

SETTINGS = dtp.Settings(iterations=2, feedback_lr=1e-4)


@pytest.mark.parametrize("method", ["dtp", "tp"])
def test_a_trainer_goes_on_from_its_state(method):
    data = made_set()
    plan = Plan(as_splits(data, None, None), method=method, lr=1e-3)
    batches = list(data.train.batches(24, seed=0))
    whole, begun, resumed = (Trainer(dtp.network("tiny"), SETTINGS, plan) for _ in range(3))
    at_once = whole.train(batches)
    first = begun.train(batches[:2])
    resumed.load(copy.deepcopy(begun.state()))
    second = resumed.train(batches[2:])
    assert torch.equal(torch.cat([first.losses, second.losses]), at_once.losses)
    assert digest(resumed.model) == digest(whole.model)
    for n, (losses,) in whole.feedback_losses.items():
        assert torch.equal(torch.cat(resumed.feedback_losses[n]), losses)
