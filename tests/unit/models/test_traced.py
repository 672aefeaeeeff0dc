"""Any module as blocks by its graph: the same bits, the user's modules, values that travel."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.models.traced import NotTraced, trace
from tests.make import labelled


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


def through(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def fitted(network, method="seq", data=None, **options):
    data = labelled(16, 8) if data is None else data
    return alkit.fit(network, data, method=method, progress=False, **options)


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


class Beside(Layers):
    """Does something that no operator on its input is."""

    def __init__(self, what):
        super().__init__()
        self.what, self.seen = what, []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        h = F.relu(self.l1(x))
        if self.what == "no_grad":
            with torch.no_grad():
                h = F.relu(self.l2(h))
        elif self.what == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                h = F.relu(self.l2(h)).float()
        elif self.what == "buffer":
            self.count += 1
        elif self.what == "attribute":
            self.features = h
        elif self.what == "list":
            self.seen.append(h)
        elif self.what == "noise":
            h = h + torch.rand(16)
        return self.l3(F.relu(self.l2(h)))


ELSE = "computes something else than it does itself"
WRITES = "writes what it computes into its modules"
LOST = {"no_grad": ELSE, "autocast": ELSE, "buffer": WRITES, "attribute": WRITES, "list": WRITES}
LOST |= {"noise": "draws numbers"}


@pytest.mark.parametrize("what", LOST)
def test_what_a_graph_would_lose_is_no_graph(what):
    """Backprop trains it uncut; others say what they would lose, and leave no trace."""
    network = Beside(what)
    before = {**vars(network)}
    with pytest.raises((TypeError, NotTraced), match=LOST[what]):
        fitted(network)
    assert vars(network) == before
    assert not network.seen
    assert network.count == 0
    no_gradient = pytest.warns(UserWarning, match="gets no gradient for module.l1.weight")
    with no_gradient if what == "no_grad" else nullcontext():
        fitted(network, "bp", batch_size=8)


class Padded(nn.Module):
    """Texts, an encoder's layers and a mask of padding, which is needed to the end."""

    def __init__(self, mask_first=True):
        super().__init__()
        self.mask_first, self.table = mask_first, nn.Embedding(9, 8, padding_idx=0)
        layers = (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(3))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(8, 3)

    def forward(self, tokens):
        mask = tokens == 0 if self.mask_first else None
        h = self.table(tokens)
        mask = tokens == 0 if mask is None else mask
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=mask)
        kept = (~mask).unsqueeze(2)
        return self.head((h * kept).sum(1) / kept.sum(1))


TEXTS = torch.tensor([[3, 4, 5, 6, 0], [7, 8, 0, 0, 0], [1, 2, 3, 0, 0], [5, 5, 5, 5, 5]])


@pytest.mark.parametrize("mask_first", [True, False])
def test_a_mask_travels_freely_and_behind_what_weights_have_made(mask_first):
    torch.manual_seed(0)
    network = Padded(mask_first)
    blocks = trace(network)
    assert [block.several for block in blocks] == [True] * 3 + [False] * 2  # table, layers, head
    newest, mask = blocks[0](TEXTS)
    assert newest.requires_grad
    assert torch.equal(mask, TEXTS == 0)
    assert torch.equal(through(blocks, TEXTS), network(TEXTS))


def test_tied_weights_stay_in_one_block():
    class Tied(Padded):
        def forward(self, x):
            return F.linear(self.layers[0](self.table(x)), self.table.weight)

    with pytest.raises(NotTraced, match="weights are used early and late"):
        trace(Tied())
