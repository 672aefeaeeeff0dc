"""What users bring to split learning, models, samples, schedulers: it is trained on as it is, or
refused in a sentence."""

import pytest
import torch
from torch import nn

import alkit
from alkit.split.pairs import Pairs
from tests.make import labelled

X, Y = labelled(66, 8)


def network(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *between, nn.ReLU(), nn.Linear(8, 3))


def fit(model=None, data=(X, Y), **options):
    options = {"method": "splitfed", "lr": 0.01, "progress": False} | options
    return alkit.fit(model or network(), data, **options)


def flat(record):
    return torch.cat([own.flatten() for own in record.model.parameters()])


class Keeps(nn.Module):
    """Keeps a mean that training moves, in its state or outside of it, and a mask."""

    def __init__(self, *, persistent, moved=True):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8), persistent=persistent)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.moved = moved

    def forward(self, x):
        if self.training and self.moved:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return (x - self.mean) @ self.mask.softmax(1)


@pytest.mark.parametrize("cut", [1, 3])
def test_what_training_moves_and_no_state_holds_is_refused(cut):
    """A mask of infinities is no divergence."""
    with pytest.raises(ValueError, match=r"unit 1 .* mean .* register it with persistent=True"):
        fit(network(Keeps(persistent=False)), cuts=[cut])
    fit(network(Keeps(persistent=False, moved=False)), cuts=[cut])
    found = fit(network(Keeps(persistent=True)), cuts=[cut], epochs=2).model[1]
    assert found.mean.abs().sum() > 0
    assert found.mask.isinf().any()


def tied():
    made = network(nn.Linear(8, 8))
    made[1].weight = made[0].weight
    return made


def step(own):
    return torch.optim.lr_scheduler.StepLR(own, 1, 0.0)


REFUSED = [
    ({"model": tied()}, "side 0 and 1 share a parameter"),
    ({"scheduler": step, "aggregate_every": 2}, "leave aggregate_every at -1"),
    ({"data": (X, torch.where(Y == 1, -100, Y))}, "labels are -100 to 2: .* 0 to C - 1"),
    ({"drop_last": True, "batch_size": 32, "workers": 4}, "drop_last"),
    ({"method": "pipelearn", "profile": 1}, "uplink_mbit and downlink_mbit"),
    ({"ranks": 3, "workers": 3}, "workers is 3 and there are 3 ranks"),
    ({"method": "fed", "cuts": [1]}, "give 3 for fed"),
    ({"micro": 2}, "several are for pipelearn"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        fit(**options)


def test_a_scheduler_moves_the_rates_of_all_halves():
    """A rate of nothing after the first epoch."""
    three = fit(epochs=3, optimizer=momentum, scheduler=step)
    assert torch.equal(flat(three), flat(fit(epochs=1, optimizer=momentum)))


@pytest.mark.parametrize("every", [-1, 1])
def test_a_loss_is_the_mean_over_samples_and_rows_are_rounds(every):
    options = {"lr": 0.0, "batch_size": 64}
    [wanted] = fit(method="bp", **options).history.loss
    history = fit(workers=1, **options, aggregate_every=every).history
    assert ("round" in history) == (every != -1)
    assert (history.loss * history.samples).sum() / 66 == pytest.approx(wanted, abs=1e-4)


# ---- a run that goes on


def kept(folder, **options):
    folder.mkdir(exist_ok=True)
    return fit(checkpoint=folder / "run", batch_size=16, **{"workers": 2, "epochs": 2} | options)


def momentum(parameters, lr, **more):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, **more)


@pytest.mark.parametrize("every", [-1, 1, 0])
def test_a_run_that_goes_on_ends_in_the_bits_of_one(tmp_path, monkeypatch, every):
    """Interrupted in its second round."""
    whole, round_ = kept(tmp_path / "whole", aggregate_every=every), Pairs.round

    def failing(pairs, number):
        if number == min(1, len(whole.history) - 1):
            raise KeyboardInterrupt
        return round_(pairs, number)

    with monkeypatch.context() as patched:
        patched.setattr(Pairs, "round", failing)
        with pytest.raises(KeyboardInterrupt):
            kept(tmp_path, aggregate_every=every)
    again = kept(tmp_path, aggregate_every=every)
    assert torch.equal(flat(whole), flat(again))
    assert torch.equal(whole.losses, again.losses)


def jump(parameters, lr):
    """Make a weight that is no number in the last step, after which no loss looks at it."""
    own = torch.optim.SGD(parameters, lr=lr)
    steps = iter([lr, lr, float("inf")])
    own.register_step_pre_hook(lambda each, *_: each.param_groups[0].update(lr=next(steps)))
    return own


@pytest.mark.parametrize("method", ["splitfed", "fed", "central"])
def test_weights_that_are_no_numbers_are_no_result(method):
    with pytest.raises(FloatingPointError, match="is not finite after the last step"):
        fit(method=method, optimizer=jump, workers=1, batch_size=22)
