"""Modes, buffers, chance, numbers that are none, and runs that go on."""

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, mse_loss

from tests.conformance.families import FAMILIES, WIDTH, C, flat, held, loader, net, rows

pytestmark = pytest.mark.filterwarnings("ignore")
BACKPROP = [each for each in FAMILIES if each.method != "dtp"]  # BatchNorm has no inverse there


def blocks(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 16), *between, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, C)
    )


@held("modes", BACKPROP)
def test_a_frozen_batchnorm_in_evaluation_mode_stays_so(family):
    norm = nn.BatchNorm1d(16)
    norm.running_mean += 0.5
    model = blocks(norm).train()
    norm.eval().requires_grad_(False)
    family.fit(model, rows(64))
    assert norm.num_batches_tracked == 0
    assert (norm.running_mean == 0.5).all()
    assert not norm.training
    assert model.training


@held("trains in training mode", BACKPROP)
def test_a_network_in_evaluation_mode_is_trained_as_every_other(family):
    norm = nn.BatchNorm1d(16)
    model = blocks(norm).eval()
    family.fit(model, rows(64))
    assert norm.num_batches_tracked > 0
    assert not model.training


@held("buffers", BACKPROP)
def test_a_buffer_that_is_assigned_stays_assigned(family):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.n = self.n + 1
            return x

    counts = Counts()
    family.fit(blocks(counts), rows(64), batch_size=16, **family.one)
    assert counts.n >= 4


@held("chance", BACKPROP)
def test_noise_of_a_function_depends_on_the_seed_alone(family):
    class Noisy(nn.Module):
        def forward(self, x):
            return dropout(x, 0.5, self.training)

    found = []
    for drawn in (11, 12):
        model = blocks(Noisy())
        torch.manual_seed(drawn)
        family.fit(model, rows(64), seed=0, lr=0.05)
        found.append(flat(model))
    assert torch.equal(*found)


@held("no gradient", [each for each in FAMILIES if each.method in ("bp", "seq", "1f1b", "elastic")])
def test_a_module_that_gets_no_gradient_is_named(family):
    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    with pytest.raises(ValueError, match="no gradient"):
        family.fit(blocks(Cut()), rows(64))


@held("not a number", [each for each in FAMILIES if each.own_loss])
def test_an_epoch_without_a_number_is_never_the_best(family):
    calls = []

    def loss(scores, y):
        value = mse_loss(scores, y)
        if torch.is_grad_enabled():
            return value
        calls.append(None)
        return value * float("nan") if len(calls) == 1 else value

    x, _ = rows(64)
    data = (x, x[:, :C])
    record = family.fit(net(), data, data, loss=loss, epochs=3, lr=0.01, batch_size=64)
    assert record.best_epoch > 1


@held("nan scores")
def test_scores_that_are_no_numbers_are_wrong_answers(family):
    from alkit.engine.evaluate import right

    scores = torch.full((4, C), float("nan"))
    assert right(scores, torch.zeros(4, dtype=torch.int64)).sum() == 0


@held("resume")
def test_a_resumed_run_with_a_shuffled_loader_is_the_uninterrupted_one(family, tmp_path):
    class Stopped(Exception):
        pass

    def run(path, stops=99):
        calls = []

        def metric(scores, y):
            calls.append(y)
            if len(calls) == stops:
                raise Stopped
            return 0.0

        torch.manual_seed(0)
        options = {"epochs": 3, "checkpoint": path, "metrics": {"own": metric}, "lr": 0.01}
        return flat(family.fit(net(), loader(70), rows(9), **options).model)

    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "cut", stops=2)
    assert torch.equal(run(tmp_path / "cut"), whole)
