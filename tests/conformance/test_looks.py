"""What is looked at before training, and that looking changes nothing."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import alkit
from tests.conformance.families import FAMILIES

torch.manual_seed(0)
X, Y = torch.randn(64, 8), torch.arange(64) % 3


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def fit(*parts, model=None, **options):
    own = {"method": "bp", "progress": False} | options
    return alkit.fit(model or net(), *(parts or ((X, Y),)), **own)


def flat(record):
    return torch.cat([each.flatten() for each in record.model.state_dict().values()])


def method(family):
    return family.method


class Seen(Dataset):
    """Tells which samples were taken."""

    def __init__(self):
        self.taken = []

    def __len__(self):
        return 8

    def __getitem__(self, at):
        self.taken.append(at)
        return X[at], Y[at]


def seeded():
    return torch.Generator().manual_seed(5)


def test_a_loader_s_order_is_that_of_a_plain_loop():
    orders = []
    for run in (list, fit):
        data = Seen()
        run(DataLoader(data, 8, shuffle=True, generator=seeded()))
        orders.append(data.taken[-8:])
    assert orders[0] == orders[1]


def test_a_loader_leaves_torch_s_generator_where_it_was():
    before = torch.get_rng_state()
    network = net()
    torch.set_rng_state(before)
    fit(DataLoader(TensorDataset(X, Y), 8, shuffle=True), model=network)
    assert torch.equal(torch.get_rng_state(), before)


WRONG = {
    "test of another width": ({"test": (X[:, :5], Y)}, "the first batch of the test part"),
    "validation without samples": ({"validation": []}, "the validation data have no samples"),
    "metrics as a list": (
        {"test": (X, Y), "metrics": [lambda scores, y: 1.0]},
        "metrics is .*give {name: function",
    ),
    "patience without validation": (
        {"callbacks": [alkit.patience(1)]},
        "a callback that looks at it is given, and no validation",
    ),
    "metrics of nothing": ({"metrics": {"m": max}}, "metrics= is given, and no validation"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("family", FAMILIES, ids=method)
def test_what_would_be_measured_is_looked_at_before_the_first_step(family, what):
    network, (options, said) = net(), WRONG[what]
    before = network[0].weight.clone()
    with pytest.raises((ValueError, TypeError), match=said):
        family.fit(network, (X, Y), **options)
    assert torch.equal(network[0].weight, before)


@pytest.mark.parametrize("name", ["bp", "al", "seq", "elastic"])
def test_no_gradients_are_left(name):
    network = net()
    fit((X, Y), model=network, method=name)
    assert all(each.grad is None for each in network.parameters())
