"""What users bring to split learning, models, samples, schedulers: it is trained on as it is, or
refused in a sentence."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.split.pairs import Pairs
from alkit.split.stream import deal

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
    [(turning, "unit 0 keeps turn, torch.complex64"), (tied, "side 0 and 1 share a parameter")],
)
def test_what_devices_cannot_average_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        fit(make())


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


@pytest.mark.parametrize("cut", [0, 1, 2, 4])
def test_a_block_that_no_gradient_reaches_is_refused(cut):
    with pytest.raises(ValueError, match=r"block 0 \(Linear\) can learn and gets no gradient"):
        fit(network(Detached()), cuts=[cut])
    frozen = network(Detached())
    frozen[0].requires_grad_(False)
    fit(frozen, cuts=[cut])


# ---- rates, losses, labels

LR = torch.optim.lr_scheduler


def two_rates(parameters, lr):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": lr / 10}, {"params": rest}], lr=lr)


SCHEDULERS = {
    "one cycle": lambda own: LR.OneCycleLR(own, 0.1, total_steps=4),
    "plateau": lambda own: LR.ReduceLROnPlateau(own, patience=0),
    "groups": lambda own: LR.LambdaLR(own, [lambda at: 1.0, lambda at: 0.5**at]),
    "step": lambda own: LR.StepLR(own, 1, 0.0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_moves_the_rates_of_all_halves(name):
    options = {"optimizer": two_rates} if name == "groups" else {"optimizer": plain}
    moved, still = (
        torch.cat([own.flatten() for own in fit(epochs=3, **options, **more).model.parameters()])
        for more in ({"scheduler": SCHEDULERS[name]}, {})
    )
    assert name == "plateau" or not torch.allclose(moved, still, atol=1e-5)
    if name == "step":
        once = fit(epochs=1, **options).model.parameters()
        assert torch.equal(moved, torch.cat([own.flatten() for own in once]))


def test_a_scheduler_goes_by_epochs():
    with pytest.raises(ValueError, match="leave aggregate_every at -1"):
        fit(scheduler=SCHEDULERS["step"], aggregate_every=2)


@pytest.mark.parametrize("every", [-1, 1])
def test_a_loss_is_the_mean_over_samples_and_rows_are_rounds(every):
    options = {"workers": 1, "lr": 0.0, "batch_size": 64}
    [wanted] = losses(method="bp", lr=0.0, batch_size=64)
    history = fit(**options, aggregate_every=every).history
    assert ("round" in history) == (every != -1)
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
    ],
)
def test_what_would_be_left_out_is_refused_before_the_start(data, options, words):
    with pytest.raises(ValueError, match=words):
        fit(data=data, **options)


def test_progress_is_shown_by_rounds(capsys):
    fit(progress=True, epochs=2)
    said = capsys.readouterr().err
    assert "splitfed:" in said
    assert "/2 " in said or "| 0/2" in said


# ---- a run that goes on


def kept(tmp_path, **options):
    tmp_path.mkdir(exist_ok=True)
    return fit(checkpoint=tmp_path / "run", batch_size=16, **{"workers": 2} | options)


def plain(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def decayed(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)


TAIL = torch.cat([X[:-16], X[-16:].flip(0)]), torch.cat([Y[:-16], Y[-16:].flip(0)])


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({"aggregate_every": 1}, {"epochs": 4}, "is 2 there and 4 here|is 6 there and 12 here"),
        (
            {"optimizer": plain},
            {"optimizer": decayed},
            "weight_decay of optimiser head 0",
        ),
        ({}, {"optimizer": plain}, "of optimiser head 0.0 is missing there"),
        ({}, {"data": TAIL}, "data is"),
        ({}, {"workers": 3}, "devices is 2 there and 3 here"),
    ],
)
def test_another_run_s_checkpoint_is_refused(tmp_path, first, then, words):
    kept(tmp_path, epochs=2, **first)
    with pytest.raises(ValueError, match=words):
        kept(tmp_path, **{"epochs": 2} | first | then)


@pytest.mark.parametrize("every", [-1, 1, 0])
def test_a_run_that_goes_on_ends_in_the_bits_of_one(tmp_path, every):
    """Interrupted in its second round."""
    whole = kept(tmp_path / "whole", epochs=2, aggregate_every=every)

    class Stop(Exception):
        pass

    def failing(round_):
        def wrapped(pairs, number):
            if number == min(1, len(whole.history) - 1):
                raise Stop
            return round_(pairs, number)

        return wrapped

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Pairs, "round", failing(Pairs.round))
        with pytest.raises(Stop):
            kept(tmp_path, epochs=2, aggregate_every=every)
    again = kept(tmp_path, epochs=2, aggregate_every=every)
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert torch.equal(whole.losses, again.losses)


# ---- cuts that carry no gradient


class Above(nn.Module):
    def forward(self, x):
        return (x > 0).long()


def test_a_cut_after_whole_numbers_carries_no_gradient_and_may_need_none():
    ends = []
    for cut in (0, 1, 2):
        torch.manual_seed(0)
        model = nn.Sequential(Above(), nn.Embedding(2, 4), nn.Flatten(), nn.Linear(32, 3))
        ends.append(fit(model, cuts=[cut]).model[1].weight)
    assert all(torch.equal(ends[0], other) for other in ends)
    learns = nn.Sequential(nn.Linear(8, 8), *model)
    with pytest.raises(ValueError, match=r"block 0 \(Linear\) can learn and gets no gradient"):
        fit(learns, cuts=[2])


def test_equal_shares_leave_no_sample_out():
    assert sorted(map(len, deal(99, 2))) == [49, 50]


# ---- divergence


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
