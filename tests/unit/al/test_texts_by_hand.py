"""The published recipe on texts: forward and one step against networks written anew here.

Everything below "theirs" is made from the description alone: attention of four linear maps with
-1e9 at padding, LSTMs that run each text alone.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import to_al
from alkit.al.bridges import pool
from studies.al import families
from studies.al.networks import lstm_al, transformer
from tests.unit.al.helpers import texts

CLASSES, WIDTH, HEADS, FFN, HIDDEN, CODE, RATE = 3, 12, 3, 10, 7, 128, 2.5e-4


def _batch():
    x = torch.randint(2, 30, (8, 6), generator=torch.Generator().manual_seed(0))
    x[1, 4:] = x[3, 1:] = x[4, 5:] = 0
    return x, torch.arange(8) % CLASSES


# ---- theirs


class TheirEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, FFN), nn.Linear(FFN, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x, mask):
        y = self.norms[0](x)
        size = WIDTH // HEADS
        heads = []
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            q, k, v = (part(y)[..., own] for part in (self.q, self.k, self.v))
            scores = (q @ k.transpose(1, 2) / math.sqrt(size)).masked_fill(~mask[:, None], -1e9)
            heads.append(scores.softmax(-1) @ v)
        x = x + self.o(torch.cat(heads, -1))
        x = x + self.down(self.up(self.norms[1](x)).relu())
        return self.norms[2](x)


def alone(lstm, x, mask, states):
    """Run each text by itself, to its own end; zeros behind it."""
    outputs, ends = [], []
    for at, length in enumerate(mask.sum(1).tolist()):
        own = states and tuple(each[:, at : at + 1].contiguous() for each in states)
        found, last = lstm(x[at : at + 1, :length], own)
        outputs.append(F.pad(found, (0, 0, 0, mask.shape[1] - length)))
        ends.append(last)
    return torch.cat(outputs), tuple(torch.cat(each, 1) for each in zip(*ends, strict=True))


def averaged(x, mask):
    weights = mask[..., None].double()
    return (x * weights).sum(1) / weights.sum(1)


class Theirs:
    """The network of a family, with the weights of one of ours."""

    def __init__(self, family, blocks):
        self.family = family
        table, *others = blocks
        self.table = nn.Parameter(table.table.weight.detach().clone())
        self.blocks = [
            copy.deepcopy(block.lstm) if family == "lstm" else TheirEncoder().double()
            for block in others
        ]
        ours = ours_in_their_order(family, blocks)[1:] if family != "lstm" else []
        for block, own in zip(self.blocks, ours, strict=False):
            for parameter, value in zip(block.parameters(), own, strict=True):
                parameter.data.copy_(value)

    def parts(self):
        """Return the parameters of each block, in the order of `ours`."""
        return [[self.table], *(list(block.parameters()) for block in self.blocks)]

    def climb(self, tokens, *, detached):
        """Yield what each block hands on, and its features."""
        mask = tokens != 0
        x, states = self.table[tokens], None
        yield x, averaged(x, mask)
        for block in self.blocks:
            if detached:
                x = x.detach()
                states = None if states is None else tuple(each.detach() for each in states)
            if self.family == "lstm":
                x, states = alone(block, x, mask, states)
                yield x, states[0][0] + states[0][1]
            else:
                x = block(x, mask)
                yield x, averaged(x, mask)


def ours_in_their_order(family, blocks):
    """Return our parameters, block by block, cut and ordered as theirs are."""
    table, *others = blocks
    found = [[table.table.weight]]
    for block in others:
        if family == "lstm":
            found.append(list(block.lstm.parameters()))
            continue
        own = block.attention
        weights, biases = own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3)
        parts = [each for pair in zip(weights, biases, strict=True) for each in pair]
        for module in (own.out_proj, block.ffn[0], block.ffn[3], *block.norms):
            parts += module.parameters()
        found.append(parts)
    return found


def _model(family, method):
    torch.manual_seed(1)
    sizes = {"hidden": HIDDEN} if family == "lstm" else {"heads": HEADS, "ffn": FFN, "dropout": 0.0}
    sizes |= {"blocks": 2, "width": WIDTH}
    if method == "bp":
        made = families.model(family, texts(_batch()[0]), "bp", recipe="original", **sizes).double()
    else:
        blocks = {"lstm": lstm_al, "transformer": transformer}[family](30, **sizes)
        tokens = _batch()[0]
        pools = [pool, *[lambda s: s[2][0].sum(0)] * 2] if family == "lstm" else None
        options = {"recipe": "original", "pool": pools}
        made = to_al(blocks, CLASSES, (tokens, tokens != 0), **options).double()
    with torch.no_grad():  # norms and biases that could be mixed up
        for block in made if method == "bp" else (layer.enc.f for layer in made):
            for name, parameter in block.named_parameters():
                if "norm" in name or "bias" in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return made


FAMILIES = ("transformer", "lstm")


@pytest.mark.parametrize("family", FAMILIES)
def test_al_equals_what_is_written_by_hand_over_a_step(family):
    model = _model(family, "al")
    blocks = [layer.enc.f for layer in model]
    theirs = Theirs(family, blocks)
    tokens, labels = _batch()
    code = y = F.one_hot(labels, CLASSES).double()
    x = tokens, tokens != 0
    climbed = list(theirs.climb(tokens, detached=True))
    for level, ((handed, features), own) in enumerate(zip(climbed, theirs.parts(), strict=True)):
        layer = model[level]
        # bridge and label side: plain linear maps
        sides = layer.enc.b, layer.ae.g, layer.ae.h
        b, g, h = (copy.deepcopy(_linear(part)) for part in sides)
        x, y = layer(x, y)
        real = tokens != 0
        torch.testing.assert_close(x[0][real], handed[real].detach(), rtol=0, atol=1e-12)
        t = g(code).tanh()
        r = h(t).tanh() if level == 0 else h(t)
        autoencoder = F.cross_entropy(r, labels) if level == 0 else F.mse_loss(r, code)
        associated = F.mse_loss(b(features).tanh(), t.detach())
        assert layer.loss() == pytest.approx((associated.item(), autoencoder.item()), abs=1e-12)
        _step([*own, *b.parameters()], associated)
        _step([*g.parameters(), *h.parameters()], autoencoder)
        layer.backward_and_update()
        code = t.detach()
        torch.testing.assert_close(y, code, rtol=0, atol=1e-12)
        for found, expected in zip(sides, (b, g, h), strict=True):
            _close(_linear(found).parameters(), expected.parameters())
    for found, expected in zip(ours_in_their_order(family, blocks), theirs.parts(), strict=True):
        _close(found, expected)
    assert not blocks[0].table.weight[0].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_bp_equals_what_is_written_by_hand_over_a_step(family):
    model = _model(family, "bp")
    *blocks, head = model
    theirs, linear = Theirs(family, blocks), copy.deepcopy(_linear(head))
    tokens, labels = _batch()
    last, _ = list(theirs.climb(tokens, detached=False))[-1]
    scores = linear(averaged(last, tokens != 0))
    loss = F.nll_loss(F.log_softmax(scores, 1), labels)
    torch.testing.assert_close(model((tokens, tokens != 0)), scores, rtol=0, atol=1e-12)
    own = model.loss((tokens, tokens != 0), F.one_hot(labels, CLASSES).double())
    torch.testing.assert_close(own, loss, rtol=0, atol=1e-12)
    own.backward()
    model.optimizer.step()
    _step([p for part in theirs.parts() for p in part] + list(linear.parameters()), loss)
    for found, expected in zip(ours_in_their_order(family, blocks), theirs.parts(), strict=True):
        _close(found, expected)
    _close(_linear(head).parameters(), linear.parameters())


def _linear(part):
    return next(module for module in part.modules() if isinstance(module, nn.Linear))


def _step(parameters, loss):
    """Adam's first step, by hand: the corrected moments are g and g squared."""
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= RATE * gradient / (gradient.abs() + 1e-8)


def _close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
