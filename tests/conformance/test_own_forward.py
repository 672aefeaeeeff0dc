"""What is trained is what the network computes: its own forward, its hooks, its methods' names."""

import pytest
import torch
import torchvision
from torch import nn

import alkit
from tests.conformance.families import FAMILIES

torch.manual_seed(0)
X, Y = torch.randn(48, 8), torch.arange(48) % 3
IMAGES = torch.randn(8, 3, 32, 32)
OTHERS = [each for each in FAMILIES if each.method != "dtp"]  # it has no inverse of them


def listed(kind=nn.Sequential):
    torch.manual_seed(0)
    return kind(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


class Scaled(nn.Sequential):
    """A list of modules with a forward of its own."""

    def forward(self, x):
        return super().forward(10 * x + 3)


class Predicting(nn.Module):
    """A network with a method that alkit's own models have, too."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

    def predict(self, x):
        return self(x).argmax(1)


def method(family):
    return family.method


@pytest.mark.parametrize("network", [lambda: listed(Scaled), Predicting], ids=["forward", "name"])
@pytest.mark.parametrize("family", OTHERS, ids=method)
def test_the_network_s_scores_are_the_record_s(family, network):
    own = network()
    record = family.fit(own, (X, Y), batch_size=16)
    own.eval()
    torch.testing.assert_close(record.predict(X), own(X))


class Viewing(nn.Module):
    """Convolutions whose features are flattened by `view`, as in many tutorials."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 8 * 8, 3)

    def features(self, x):
        return self.second(torch.relu(self.first(x)))

    def forward(self, x):
        return self.head(self.features(x).view(x.size(0), -1))


class Flattening(Viewing):
    """The same by `flatten`, which takes every order of channels."""

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


@pytest.mark.parametrize("network", [Viewing, Flattening])
@pytest.mark.parametrize("family", OTHERS, ids=method)
def test_weights_lie_as_they_did(family, network):
    """Channels are innermost while bp and AL train, if the network takes that, and only then."""
    own, x = network(), torch.randn(16, 3, 8, 8)
    family.fit(own, (x, torch.arange(16) % 3), batch_size=8)
    assert own.features(x).view(16, -1).shape == (16, 512)
    with pytest.raises(ValueError, match="label 3"):
        family.fit(own, (x, torch.arange(16) % 4))
    assert all(each.is_contiguous() for each in own.parameters())


def test_hooks_of_what_is_taken_apart_run_or_are_named():
    calls = []
    for made, part, options in (
        (lambda: torchvision.models.resnet18(num_classes=3), "layer2", {}),
        (lambda: nn.Sequential(listed(), nn.Tanh(), nn.Linear(3, 3)), "0", {}),
    ):
        for name in ("bp", "seq"):
            network = made()
            network.get_submodule(part).register_forward_hook(lambda *given: calls.append(1))
            x = IMAGES if part == "layer2" else X[:8]
            data = x, torch.arange(8) % 3
            alkit.fit(network, data, method=name, batch_size=8, progress=False, **options)
            assert calls
            calls.clear()


def test_hooks_of_the_whole_network_run_under_backprop_and_are_refused_by_cuts():
    network, data = listed(), (X, Y)
    network.register_forward_pre_hook(lambda module, given: (given[0] * 5,))
    record = alkit.fit(network, data, method="bp", progress=False)
    torch.testing.assert_close(record.predict(X), network(X))
    for family in FAMILIES[1:]:
        with pytest.raises(TypeError, match="it has hooks of its own"):
            family.fit(network, data)
