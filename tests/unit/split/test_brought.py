"""What users bring to split learning, models, samples, schedulers: it is trained on as it is, or
refused in a sentence."""

import shutil

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.split import data
from alkit.split.config import Config
from alkit.split.deal import deal

torch.manual_seed(1)
X = torch.randn(66, 8)
Y = X[:, :3].argmax(1)


def network(*between: nn.Module, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), *between, nn.ReLU(), nn.Linear(width, 3))


def fit(model=None, data=(X, Y), **options):
    options = {"method": "splitfed", "lr": 0.01, "progress": False} | options
    return alkit.fit(model or network(), data, **options)


def losses(*given, **options):
    return fit(*given, **options).history.loss.tolist()


class Floats(nn.Module):
    def forward(self, x):
        return x.float()


def test_bytes_that_are_no_images_are_taken_as_they_are():
    data = (X.abs() * 60).byte()[:64], Y[:64]
    wanted, found = (
        losses(nn.Sequential(Floats(), *network()), data, lr=0.0, method=method, workers=workers)
        for method, workers in (("bp", None), ("splitfed", 1))
    )
    assert found == pytest.approx(wanted, rel=1e-5)


# ---- what models keep


class Keeps(nn.Module):
    """Keeps a mean that training moves, in its state or outside of it."""

    def __init__(self, *, persistent: bool, moved: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8), persistent=persistent)
        self.moved = moved

    def forward(self, x):
        if self.training and self.moved:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x - self.mean


@pytest.mark.parametrize("cut", [1, 3])
def test_what_training_moves_and_no_state_holds_is_refused(cut):
    with pytest.raises(ValueError, match=r"unit 1 .* mean .* register it with persistent=True"):
        fit(network(Keeps(persistent=False)), cuts=[cut])
    fit(network(Keeps(persistent=False, moved=False)), cuts=[cut])
    assert fit(network(Keeps(persistent=True)), cuts=[cut]).model[1].mean.abs().sum() > 0


def tied():
    made = network(nn.Linear(8, 8))
    made[1].weight = made[0].weight
    return made


def turning():
    """Keep a complex number."""
    made = network()
    made[0].register_buffer("turn", torch.zeros(1, dtype=torch.complex64))
    return made


@pytest.mark.parametrize(
    ("make", "words"),
    [(turning, "unit 0 keeps turn, torch.complex64"), (tied, "would share a parameter")],
)
def test_what_devices_cannot_average_is_refused_beside_the_face_too(make, words):
    for run in (fit, lambda made: alkit.split.train(made, [(X, Y)])):
        with pytest.raises(ValueError, match=words):
            run(make())


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))

    def forward(self, x):
        return x @ self.mask.softmax(1)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_mask_of_infinities_is_no_divergence(cut):
    record = fit(network(Masked()), cuts=[cut], workers=2, epochs=2)
    assert record.model[1].mask.isinf().any()


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (0, r"block 0 \(Linear\) can learn and gets no gradient"),
        (1, "no gradient reaches unit 0"),
        (2, r"block 0 \(Linear\) can learn and gets no gradient"),
        (4, r"block 0 \(Linear\) can learn and gets no gradient"),
    ],
)
def test_a_block_that_no_gradient_reaches_is_refused(cut, words):
    with pytest.raises(ValueError, match=words):
        fit(network(Detached()), cuts=[cut])
    frozen = network(Detached())
    frozen[0].requires_grad_(False)
    if cut != 1:
        fit(frozen, cuts=[cut])


# ---- rates, losses, labels

LR = torch.optim.lr_scheduler


def two_rates(parameters, lr):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": lr / 10}, {"params": rest}], lr=lr)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda own: LR.OneCycleLR(own, 0.1, total_steps=4), {}, "cycle_momentum=False"),
        (lambda own: LR.ReduceLROnPlateau(own), {}, "looks at results"),
        (
            lambda own: LR.LambdaLR(own, [lambda at: 1.0, lambda at: 0.5**at]),
            {"optimizer": two_rates},
            "groups differently",
        ),
        (lambda own: LR.OneCycleLR(own, 0.1, 4, cycle_momentum=False), {"lr": 0.0}, "above 0"),
    ],
)
def test_schedulers_of_which_rounds_share_no_factor_are_refused(make, options, words):
    with pytest.raises(ValueError, match=words):
        fit(scheduler=make, epochs=3, **options)


def test_schedulers_see_the_run_s_own_optimiser():
    seen = []

    def halving(own):
        seen.append(own)
        return LR.LambdaLR(own, [lambda at: 0.5**at] * 2)

    made = fit(scheduler=halving, optimizer=two_rates, epochs=3).details
    assert len(seen[0].param_groups) == 2
    assert len(made.rounds) == 3


@pytest.mark.parametrize("every", [-1, 1])
def test_a_loss_is_the_mean_over_samples_and_rows_are_rounds(every):
    options = {"workers": 1, "lr": 0.0, "batch_size": 64}
    [wanted] = losses(method="bp", lr=0.0, batch_size=64)
    history = fit(**options, aggregate_every=every).history
    assert list(history)[0] == ("epoch" if every == -1 else "round")
    assert (history.loss * history.samples).sum() / 66 == pytest.approx(wanted, abs=1e-4)


def dropping():
    return DataLoader(TensorDataset(X, Y), batch_size=32, drop_last=True)


@pytest.mark.parametrize(
    ("data", "given"), [(dropping(), {}), ((X, Y), {"batch_size": 32, "drop_last": True})]
)
def test_each_device_leaves_a_smaller_last_batch_out_if_asked(data, given):
    for workers in (1, 2):  # 66 samples, or 33 each
        assert (
            fit(data=data, workers=workers, epochs=2, **given).history.samples.tolist() == [64] * 2
        )
    with pytest.raises(ValueError, match="drop_last"):
        fit(data=data, workers=4, **given)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ((X, torch.where(Y == 1, -100, Y)), {}, "labels are -100 to 2: .* 0 to C - 1"),
        ((X, Y), {"optimizer": two_rates, "momentum": 0.5}, "momentum is for"),
    ],
)
def test_what_would_be_left_out_is_refused_before_the_start(data, options, words):
    with pytest.raises(ValueError, match=words):
        fit(data=data, **options)


def test_progress_is_shown_by_rounds(capsys):
    fit(progress=True, epochs=2)
    said = capsys.readouterr().err
    assert "splitfed:" in said
    assert "/2 " in said


# ---- a run that goes on


def kept(tmp_path, **options):
    return fit(checkpoint=tmp_path / "run", batch_size=16, **{"workers": 2} | options)


def plain(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def decayed(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)


TAIL = torch.cat([X[:-16], X[-16:].flip(0)]), torch.cat([Y[:-16], Y[-16:].flip(0)])


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({"aggregate_every": 1}, {"epochs": 4}, "epochs is 2 there and 4 here"),
        ({"optimizer": plain}, {"optimizer": decayed}, "weight_decay of the optimizer's group 0"),
        ({}, {"optimizer": plain}, "optimizer is 'Adam' there and 'SGD' here"),
        ({}, {"data": TAIL}, "data is"),
    ],
)
def test_another_run_s_checkpoint_is_refused(tmp_path, first, then, words):
    kept(tmp_path, epochs=2, **first)
    with pytest.raises(ValueError, match=words):
        kept(tmp_path, **{"epochs": 2} | first | then)


def test_a_checkpoint_without_its_devices_is_refused(tmp_path):
    kept(tmp_path)
    shutil.rmtree(tmp_path / "run.devices")
    with pytest.raises(ValueError, match="run.devices, with the optimisers"):
        kept(tmp_path, epochs=2)
    assert len(kept(tmp_path).history) == 1  # which has nothing left to train


# ---- cuts that carry no gradient


class Above(nn.Module):
    def forward(self, x):
        return (x > 0).long()


@pytest.mark.parametrize("method", ["splitfed", "split"])
def test_a_cut_after_whole_numbers_is_refused(method):
    model = nn.Sequential(Above(), nn.Embedding(2, 4), nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(ValueError, match=r"unit 0 gives torch.int64.*cut after a unit"):
        fit(model, method=method)
    for cut in (0, 2):
        fit(model, method=method, cuts=[cut])


def test_equal_shares_leave_no_sample_out():
    assert sorted(map(len, deal(torch.arange(99) % 3, 2))) == [49, 50]


def test_devices_without_a_size_share_all():
    own = Config(data="digits", devices=4)
    assert list(map(len, data.dealt(own))) == [270, 270, 269, 269]
