"""What users bring to split learning, models, samples, schedulers: it is trained on as it is, or
refused in a sentence."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.split.pairs import Pairs
from tests.make import labelled

X, Y = labelled(66, 8)
LR = torch.optim.lr_scheduler


def network(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *between, nn.ReLU(), nn.Linear(8, 3))


def fit(model=None, data=(X, Y), **options):
    options = {"method": "splitfed", "lr": 0.01, "progress": False} | options
    return alkit.fit(model or network(), data, **options)


def flat(record):
    return torch.cat([own.flatten() for own in record.model.parameters()])


class Block(nn.Module):
    """A block of any function."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


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


def turning():
    """Keep a complex number."""
    made = network()
    made[0].register_buffer("turn", torch.zeros(1, dtype=torch.complex64))
    return made


def detached():
    return network(Block(Tensor.detach))


def step(own):
    return LR.StepLR(own, 1, 0.0)


NONE = r"block 0 \(Linear\) can learn and gets no gradient"
REFUSED = [
    ({"model": turning()}, "unit 0 keeps turn, torch.complex64"),
    ({"model": tied()}, "side 0 and 1 share a parameter"),
    *(({"model": detached(), "cuts": [cut]}, NONE) for cut in (0, 1, 2, 4)),
    ({"scheduler": step, "aggregate_every": 2}, "leave aggregate_every at -1"),
    ({"data": (X, torch.where(Y == 1, -100, Y))}, "labels are -100 to 2: .* 0 to C - 1"),
    ({"drop_last": True, "batch_size": 32, "workers": 4}, "drop_last"),
    ({"method": "pipelearn", "profile": 1}, "uplink_mbit and downlink_mbit"),
    ({"ranks": 3, "workers": 3}, "workers is 3 and there are 3 ranks"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        fit(**options)


def two_rates(parameters, lr):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": lr / 10}, {"params": rest}], lr=lr)


SCHEDULERS = {
    "one cycle": lambda own: LR.OneCycleLR(own, 0.1, total_steps=4),
    "groups": lambda own: LR.LambdaLR(own, [lambda at: 1.0, lambda at: 0.5**at]),
    "step": step,
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_moves_the_rates_of_all_halves(name):
    options = {"optimizer": two_rates if name == "groups" else momentum}
    moved, still = (fit(epochs=3, **options, **o) for o in ({"scheduler": SCHEDULERS[name]}, {}))
    assert not torch.allclose(flat(moved), flat(still), atol=1e-5)
    if name == "step":
        assert torch.equal(flat(moved), flat(fit(epochs=1, **options)))


@pytest.mark.parametrize("every", [-1, 1])
def test_a_loss_is_the_mean_over_samples_and_rows_are_rounds(every):
    options = {"lr": 0.0, "batch_size": 64}
    [wanted] = fit(method="bp", **options).history.loss
    history = fit(workers=1, **options, aggregate_every=every).history
    assert ("round" in history) == (every != -1)
    assert (history.loss * history.samples).sum() / 66 == pytest.approx(wanted, abs=1e-4)


def test_each_device_leaves_a_smaller_last_batch_out_if_asked():
    loader = DataLoader(TensorDataset(X, Y), batch_size=32, drop_last=True)
    for given in ({"data": loader}, {"batch_size": 32, "drop_last": True}):
        for workers in (1, 2):  # 66 samples, or 33 each
            history = fit(workers=workers, epochs=2, **given).history
            assert history.samples.tolist() == [64] * 2


# ---- a run that goes on


def kept(folder, **options):
    folder.mkdir(exist_ok=True)
    return fit(checkpoint=folder / "run", batch_size=16, **{"workers": 2, "epochs": 2} | options)


def momentum(parameters, lr, **more):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, **more)


def decayed(parameters, lr):
    return momentum(parameters, lr, weight_decay=0.1)


TAIL = torch.cat([X[:-16], X[-16:].flip(0)]), torch.cat([Y[:-16], Y[-16:].flip(0)])
OTHER = [
    ({"aggregate_every": 1}, {"epochs": 4}, "is 2 there and 4 here|is 6 there and 12 here"),
    ({"optimizer": momentum}, {"optimizer": decayed}, "weight_decay of optimiser head 0"),
    ({}, {"optimizer": momentum}, "of optimiser head 0.0 is missing there"),
    ({}, {"data": TAIL}, "data is"),
    ({}, {"workers": 3}, "devices is 2 there and 3 here"),
]


@pytest.mark.parametrize(("first", "then", "words"), OTHER)
def test_another_run_s_checkpoint_is_refused(tmp_path, first, then, words):
    kept(tmp_path, **first)
    with pytest.raises(ValueError, match=words):
        kept(tmp_path, **first | then)


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
