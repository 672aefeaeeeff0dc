"""Any module as blocks by its graph: the same bits, the user's modules, values that travel."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.models.traced import NotTraced, trace


class Layers(nn.Module):
    """As in a tutorial: layers by name, functions between them."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        h = F.dropout(F.relu(self.l1(x)), 0.5, self.training)
        return self.l3(F.relu(self.l2(h)))


class Skips(nn.Module):
    """Two values are live wherever it may be cut."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + self.c(x)


class Unlike(nn.Module):
    """A weight of its own, a loop over modules, a number of the shape."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((8,), 2.0))
        self.rows = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = x * self.scale
        for row in self.rows:
            x = x + F.relu(row(x))
        return self.out(x.view(x.size(0), -1))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(self.a(x) if x.sum() > 0 else x)


def through(blocks, x):
    for block in blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("kind", [Layers, Skips, Unlike])
@pytest.mark.parametrize("training", [True, False])
def test_blocks_give_the_network_s_bits_and_hold_its_modules(kind, training):
    torch.manual_seed(0)
    network, x = kind(), torch.randn(5, 8)
    blocks = trace(network)
    assert len(blocks) > 1
    for each in (network, *blocks):
        each.train(training)
    torch.manual_seed(1)
    expected = network(x)
    torch.manual_seed(1)
    assert torch.equal(through(blocks, x), expected)
    own = {id(p) for p in network.parameters()}
    assert {id(p) for block in blocks for p in block.parameters()} == own
    names = {name.partition(".")[2] for block in blocks for name in block.state_dict()}
    assert names == set(network.state_dict())


def test_what_is_still_needed_travels_behind_the_newest_value():
    blocks = trace(Skips())
    assert [block.live for block in blocks[:-1]] == [2] * (len(blocks) - 1)
    handed = blocks[0](x := torch.randn(4, 8))
    assert torch.equal(handed[-1], x)
    assert not torch.equal(handed[0], x)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def test_hooks_of_a_part_run():
    network, calls = nn.Sequential(Layers(), nn.Linear(3, 3)), []
    network[0].register_forward_hook(lambda *given: calls.append(1))
    through(trace(Around(network)), torch.randn(2, 8))
    assert calls == [1]


def test_a_shared_module_is_not_cut_in_two():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(torch.tanh(self.a(x))))

    held = [id(p) for block in trace(Shared()) for p in block.parameters()]
    assert len(held) == len(set(held)) == 4


def test_a_forward_that_branches_is_left_to_backprop():
    with pytest.raises(NotTraced, match="can't follow"):
        trace(Branches())
    x, y = torch.randn(16, 8), torch.arange(16) % 3
    with pytest.raises(TypeError, match='blocks is a whole Branches.*method="bp"'):
        alkit.fit(Branches(), (x, y), method="seq", progress=False)
    network = Branches()
    record = alkit.fit(network, (x, y), method="bp", progress=False)
    network.eval()
    assert torch.equal(network(x), record.predict(x))


def test_a_network_in_evaluation_mode_is_trained_and_has_it_back():
    network = nn.Sequential(Layers(), nn.BatchNorm1d(3))
    around = Around(network).eval()
    data = torch.randn(16, 8), torch.arange(16) % 3
    with pytest.warns(UserWarning, match="the network is in evaluation mode"):
        alkit.fit(around, data, method="seq", batch_size=8, progress=False)
    assert network[1].num_batches_tracked == 2
    assert not any(part.training for part in around.modules())
