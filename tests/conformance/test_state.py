"""Modes, buffers, chance, numbers that are none, and runs that go on."""

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, mse_loss

from tests.conformance.families import FAMILIES, WIDTH, C, flat, held, loader, net, rows, sgd

pytestmark = pytest.mark.filterwarnings("ignore")
BACKPROP = [each for each in FAMILIES if each.method != "dtp"]  # BatchNorm has no inverse there


def blocks(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 16), *between, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, C)
    )


@held(BACKPROP)
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


@held(BACKPROP)
def test_a_network_in_evaluation_mode_is_trained_as_every_other(family):
    norm = nn.BatchNorm1d(16)
    model = blocks(norm).eval()
    family.fit(model, rows(64))
    assert norm.num_batches_tracked > 0
    assert not model.training


@held(BACKPROP)
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


@held(BACKPROP)
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


@held([each for each in FAMILIES if each.method in ("bp", "seq", "1f1b", "pipelearn", "elastic")])
def test_a_module_that_gets_no_gradient_is_named(family):
    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    with pytest.raises(ValueError, match="no gradient"):
        family.fit(blocks(Cut()), rows(64))


@held([each for each in FAMILIES if each.own_loss])
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


@held()
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


def other(kind):
    """Return a call's model, data and options with one thing changed."""
    (x, y), model, options = rows(70), net(), {}
    if kind == "inputs":
        x = 3 * x + 1
    if kind == "activation":
        model[1] = nn.ReLU()
    if kind == "dropout's rate":
        model[3] = nn.Sequential(nn.Tanh(), nn.Dropout(0.5))
    if kind == "targets":
        y = y.flip(0)
    return model, (x, y), options


@pytest.mark.parametrize("kind", ["inputs", "activation", "dropout's rate", "targets"])
@held()
def test_a_checkpoint_of_another_run_is_refused(family, kind, tmp_path):
    if (family.method, kind) == ("dtp", "dropout's rate"):
        pytest.skip("dropout has no inverse")
    options = {"epochs": 2, "checkpoint": tmp_path / "run.pt", "lr": 0.01, "seed": 3}
    model, data, _ = other("none")
    if kind == "dropout's rate":
        model[3] = nn.Sequential(nn.Tanh(), nn.Dropout(0.1))
    family.fit(model, data, **options)
    model, data, own = other(kind)
    before = flat(model)
    with pytest.raises(ValueError, match="of another run"):
        family.fit(model, data, **options | own)
    assert torch.equal(flat(model), before)


@held([each for each in FAMILIES if each.own_loss])
def test_a_checkpoint_of_another_loss_is_refused(family, tmp_path):
    options = {"epochs": 2, "checkpoint": tmp_path / "run.pt", "lr": 0.01}
    family.fit(net(), rows(70), loss=nn.CrossEntropyLoss(), **options)
    with pytest.raises(ValueError, match="of another run"):
        family.fit(net(), rows(70), loss=nn.CrossEntropyLoss(label_smoothing=0.5), **options)


@held()
def test_the_user_s_generator_goes_on_where_it_was(family, tmp_path):
    def run(path, *epochs):
        for count in epochs:
            torch.manual_seed(0)
            data = loader(64, generator=torch.Generator().manual_seed(5))
            options = {"epochs": count, "checkpoint": tmp_path / path, "lr": 0.01, "optimizer": sgd}
            model = family.fit(net(), data, **options).model
        return flat(model)

    assert torch.equal(run("whole", 3), run("cut", 1, 3))
