"""What users bring below the door: shared modules, losses of their own, schedulers, loaders."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit

X = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
QUIET = {"progress": False}
CUT = ("seq", "1f1b", "pipedream", "fr")


def net(out=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, out))


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)


class Looped(nn.Module):
    """One linear map three times, under three names."""

    def __init__(self):
        super().__init__()
        self.inp, self.shared = nn.Linear(8, 16), nn.Linear(16, 16)
        self.steps = nn.ModuleList([self.shared] * 3)

    def forward(self, x):
        x = self.inp(x)
        for each in self.steps:
            x = each(x).tanh()
        return x


@pytest.mark.parametrize("method", CUT)
def test_a_module_under_two_names_learns_on_and_stays_the_user_s(method):
    def run(name):
        torch.manual_seed(0)
        model, norms = nn.Sequential(Looped(), nn.Linear(16, 3)), []
        own = model[0].shared.weight
        norm = lambda scores, y: norms.append(model[0].shared.weight.norm().item()) or 0.0  # noqa: E731
        options = {"lr": 0.5, "epochs": 3, "optimizer": sgd, "metrics": {"norm": norm}} | QUIET
        done = alkit.fit(model, (X, Y), (X, Y), method=name, **options)
        assert model[0].shared.weight is own
        return done.history.loss.tolist(), norms

    losses, norms = run(method)
    assert len(set(norms)) == 4  # before the first epoch, too
    if method in ("seq", "1f1b"):
        plain = run("bp")
        assert losses == pytest.approx(plain[0], rel=1e-4)
        assert norms == pytest.approx(plain[1], rel=1e-4)


class Noisy(nn.Module):
    """A loss that draws."""

    reduction = "mean"

    def forward(self, scores, y):
        return F.cross_entropy(scores + torch.randn_like(scores), y)


class Drawn(torch.utils.data.Dataset):
    """Samples with noise; keeps what it has drawn."""

    def __init__(self):
        self.drawn = []

    def __len__(self):
        return len(X)

    def __getitem__(self, at):
        x = X[at] + 0.1 * torch.randn(8)
        self.drawn.append(x[0].item())
        return x, Y[at]


@pytest.mark.parametrize("method", ["bp", "pipedream", "al_pipeline", "dtp"])
def test_a_loss_that_draws_moves_nobody_s_generator(method):
    def run(loss):
        data = Drawn()
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        done = alkit.fit(net(), loader, method=method, lr=0.1, epochs=2, loss=loss, **QUIET)
        return data.drawn, done.history.loss.tolist()

    calm, noisy, again = run(F.cross_entropy), run(Noisy()), run(Noisy())
    assert noisy[0] == calm[0]
    assert noisy == again


def test_a_measured_loss_is_that_of_the_whole_part():
    x = torch.randn(1300, 8, generator=torch.Generator().manual_seed(1))
    y = x[:, :1].clone()

    def measured(loss, y):
        done = alkit.fit(net(1), (x[:64], y[:64]), (x, y), method="bp", lr=0.0, loss=loss, **QUIET)
        return done.history.val_loss.iloc[0]

    mean = measured(nn.MSELoss(), y)
    assert measured(nn.MSELoss(reduction="sum"), y) == pytest.approx(1300 * mean, rel=1e-5)
    y[-1] = torch.nan
    assert measured(nn.MSELoss(), y) != measured(nn.MSELoss(), y)


@pytest.mark.parametrize("method", ["bp", "pipedream", "dtp", "al_pipeline", "elastic"])
def test_a_loss_that_would_have_to_learn_is_refused(method):
    class Warm(nn.Module):
        reduction = "mean"

        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, scores, y):
            return F.cross_entropy(scores * self.temperature, y)

    with pytest.raises(ValueError, match="temperature"):
        alkit.fit(net(), (X, Y), method=method, loss=Warm(), **QUIET)
    alkit.fit(net(), (X, Y), method=method, loss=Warm().requires_grad_(False), **QUIET)


class Written(nn.Module):
    """Begins in place, with a module that is registered last."""

    def __init__(self):
        super().__init__()
        self.linear, self.relu = nn.Linear(8, 8), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.linear(self.relu(x)) + x


@pytest.mark.parametrize("method", ["seq", "1f1b", "pipedream", "fr", "elastic", "splitfed"])
def test_a_block_may_begin_in_place(method):
    def run(name, **options):
        torch.manual_seed(0)
        blocks = [nn.Linear(8, 8), Written(), nn.Linear(8, 3)]
        given = {"lr": 0.1, "optimizer": sgd} | options | QUIET
        return alkit.fit(blocks, (X, Y), method=name, **given).losses.flatten()

    own = run(method, cuts=[1]) if method != "elastic" else run(method)
    if method in ("seq", "1f1b"):
        torch.testing.assert_close(own, run("bp").flatten(), rtol=1e-4, atol=1e-5)


def test_target_propagation_refuses_a_weight_of_two_blocks():
    tied = nn.Linear(8, 8)
    with pytest.raises(ValueError, match="share"):
        alkit.fit([tied, nn.Tanh(), tied, nn.Tanh(), nn.Linear(8, 3)], (X, Y), method="dtp")


@pytest.mark.parametrize("method", ["bp", "pipedream", "dtp", "elastic", "splitfed"])
def test_an_optimiser_without_a_rate_to_give_is_called_without(method):
    made = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    model = net()
    before = model[0].weight.clone()
    alkit.fit(model, (X, Y), method=method, optimizer=made, **QUIET)
    assert torch.equal(before, model[0].weight) or method == "splitfed"
    with pytest.raises(ValueError, match="takes none"):
        alkit.fit(net(), (X, Y), method=method, optimizer=made, lr=0.1, **QUIET)
