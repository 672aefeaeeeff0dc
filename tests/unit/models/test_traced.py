"""Any module as blocks by its graph: the same bits, the user's modules, values that travel."""

import random
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.al.bridges import pool_of
from alkit.models.traced import NotTraced, trace
from studies.ladder import rules
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


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(self.a(x) if x.sum() > 0 else x)


class Counts(Layers):
    """With a buffer that it adds to in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return super().forward(x + 0 * self.count)


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


def test_what_is_still_needed_travels_behind_the_newest_value():
    blocks = trace(Skips())
    assert all(block.several for block in blocks[:-1])
    handed = blocks[0](x := torch.randn(4, 8))
    assert torch.equal(handed[-1], x)
    assert not torch.equal(handed[0], x)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def test_hooks_of_a_part_run_and_it_has_evaluation_mode_back():
    network, calls = nn.Sequential(Layers(), nn.BatchNorm1d(3)), []
    network[0].register_forward_hook(lambda *given: calls.append(1))
    around = Around(network)
    through(trace(around), torch.randn(2, 8))
    assert calls == [1]
    seen = int(network[1].num_batches_tracked)
    fitted(around.eval(), batch_size=8)
    assert network[1].num_batches_tracked == seen + 2
    assert not any(part.training for part in around.modules())


def test_a_shared_module_is_not_cut_in_two():
    class Shared(Branches):
        def forward(self, x):
            return self.b(self.a(torch.tanh(self.a(x))))

    held = [id(p) for block in trace(Shared()) for p in block.parameters()]
    assert len(held) == len(set(held)) == 4


def test_a_forward_that_branches_is_left_to_backprop():
    with pytest.raises(NotTraced, match="can't follow"):
        trace(Branches())
    with pytest.raises(TypeError, match='blocks is a whole Branches.*method="bp"'):
        fitted(Branches())
    network, (x, _) = Branches(), labelled(16, 8)
    record = fitted(network, "bp")
    assert torch.equal(network.eval()(x), record.predict(x))


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
        elif self.what == "depth":
            h = h if random.random() < 2 else x
        elif self.what == "noise":
            h = h + torch.rand(16)
        return self.l3(F.relu(self.l2(h)))


ELSE = "computes something else than it does itself"
WRITES = "writes what it computes into its modules"
LOST = {"no_grad": ELSE, "autocast": ELSE, "buffer": WRITES, "attribute": WRITES, "list": WRITES}
LOST |= {"depth": "draws numbers", "noise": "draws numbers"}


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


def test_no_gradient_is_told_from_one_of_zeros():
    """Below a head of zeros all gradients are zero, but a part that has none is not trained."""
    network = Beside("no_grad")
    nn.init.zeros_(network.l3.weight)
    with pytest.raises(NotTraced, match=ELSE):
        fitted(network)


@pytest.mark.parametrize("method", ["seq", "bp"])
def test_a_buffer_that_a_forward_adds_to_in_place_is_the_network_s(method):
    network = Counts()
    fitted(network, method, batch_size=8)
    assert network.count == 2  # a step each: looks leave no trace


def test_what_moves_a_block_moves_the_network_s_buffers_too():
    network, x = Counts(), torch.randn(4, 8).double()
    blocks = [block.double() for block in trace(network)]
    for training in (True, False):
        for block in blocks:
            block.train(training)
        assert through(blocks, x).dtype == torch.float64
    assert network.count.dtype == torch.float64


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


class Ladder(nn.Module):
    """A U of convolutions with a head of its own, below which two values are live."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 1, 1)
        self.up, self.out = nn.Conv2d(8, 4, 3, 1, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        low = F.relu(self.down(x))
        return self.out(torch.cat([F.relu(self.up(F.relu(self.deep(low)))), low], 1))


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


def test_where_all_but_the_head_would_be_one_block_a_skip_is_cut():
    torch.manual_seed(0)
    network, x = Ladder(), torch.randn(2, 1, 8, 8)
    blocks = trace(network)
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
    assert sizes == [40, 296, 292, 18]
    assert torch.equal(through(blocks, x), network(x))


def test_tied_weights_stay_in_one_block():
    class Tied(Padded):
        def forward(self, x):
            return F.linear(self.layers[0](self.table(x)), self.table.weight)

    with pytest.raises(NotTraced, match="weights are used early and late"):
        trace(Tied())


def texts_trained(method, **options):
    """Train on a shuffled loader of 5, 5 and 2 texts; split learning deals tensors."""
    torch.manual_seed(0)
    network = Padded()
    data = TensorDataset(TEXTS.repeat(3, 1), torch.arange(12) % 3)
    loader = DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(1))
    dealt = method == "pipelearn"
    options |= {"workers": 1, "batch_size": 5} if dealt else {"optimizer": torch.optim.SGD}
    given = data.tensors if dealt else loader
    return network, fitted(network, method, given, lr=0.1, epochs=2, **options).history.loss


@pytest.mark.parametrize("method", "seq 1f1b pipedream fr al local elastic pipelearn".split())
def test_a_network_of_padded_texts_is_trained_in_parts(method):
    """A link of split learning sends one tensor: the parts that hand on a mask are one unit."""
    network, losses = texts_trained(method)
    torch.manual_seed(0)
    pairs = zip(network.parameters(), Padded().parameters(), strict=True)
    moved = [not torch.equal(now, was) for now, was in pairs]
    assert all(moved[:-2])  # a head of AL's own layers may be another
    assert losses.isna().sum() == 0


@pytest.mark.parametrize(("method", "micro"), [("1f1b", 1), ("gpipe", 2), ("zero_bubble", 2)])
def test_padded_texts_in_parts_take_backprops_steps(method, micro):
    whole, losses = texts_trained("bp")
    network, found = texts_trained(method, micro=micro)
    assert found.tolist() == pytest.approx(losses.tolist(), rel=1e-5)
    for one, other in zip(network.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_split_learning_trains_a_network_that_is_one_unit():
    """Where no cut sends one tensor, all of it is on one side."""
    network = Padded()
    network.head = nn.Identity()  # so that the mask is needed in the last block, too
    before = network.table.weight.detach().clone()
    x, y = TEXTS.repeat(2, 1), torch.zeros(8, dtype=torch.long)
    fitted(network, "pipelearn", (x, y), lr=0.1)
    assert not torch.equal(network.table.weight, before)


@pytest.mark.parametrize("method", ["al", "local"])
def test_a_mask_of_padding_is_not_taken_for_one_of_words(method):
    """torch's mask marks padding, alkit's own marks words: what travels along is left aside."""
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, True, True]])
    block = trace(Padded())[0]
    assert torch.equal(pool_of(block, (x, mask))((x, mask)), x.mean(1))
    words = x.masked_fill(mask.unsqueeze(2), 0).sum(1) / torch.tensor([[2.0], [1.0]])
    torch.testing.assert_close(pool_of(nn.Identity(), (x, ~mask))((x, ~mask)), words)
    network, _ = texts_trained(method)
    torch.manual_seed(0)
    assert not torch.equal(network.table.weight, Padded().table.weight)


def test_a_rule_that_averages_words_says_that_it_can_t():
    with pytest.raises(ValueError, match="may mark words or padding"):
        texts_trained("local", rule=rules.predsim)
