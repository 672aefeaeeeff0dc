"""The published recipe on texts: forward and one step against a network written anew here.

"Theirs" is made from the description alone: attention of four linear maps with -1e9 at padding.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import to_al
from studies.al.networks import transformer

CLASSES, WIDTH, HEADS, FFN, RATE = 3, 12, 3, 10, 2.5e-4


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


def in_their_order(block):
    """Return the parameters of one of our blocks, cut and ordered as theirs are."""
    own = block.attention
    weights, biases = own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3)
    parts = [each for pair in zip(weights, biases, strict=True) for each in pair]
    for module in (own.out_proj, block.ffn[0], block.ffn[3], *block.norms):
        parts += module.parameters()
    return parts


def test_al_equals_what_is_written_by_hand_over_a_step():
    torch.manual_seed(1)
    tokens, labels = torch.randint(2, 30, (8, 6)), torch.arange(8) % CLASSES
    tokens[1, 4:] = tokens[3, 1:] = tokens[4, 5:] = 0
    real = tokens != 0
    blocks = transformer(30, blocks=2, width=WIDTH, heads=HEADS, ffn=FFN, dropout=0.0)
    model = to_al(blocks, CLASSES, (tokens, real), recipe="original").double()
    for block in blocks[1:]:
        for name, parameter in block.named_parameters():  # norms and biases that could be mixed up
            if "norm" in name or "bias" in name:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    table = nn.Parameter(blocks[0].table.weight.detach().clone())
    theirs = [TheirEncoder().double() for _ in blocks[1:]]
    for encoder, block in zip(theirs, blocks[1:], strict=True):
        for parameter, value in zip(encoder.parameters(), in_their_order(block), strict=True):
            parameter.data.copy_(value)
    x, y, features = (tokens, real), F.one_hot(labels, CLASSES).double(), table[tokens]
    code = y
    for level, layer in enumerate(model):
        own = [table]
        if level:
            encoder = theirs[level - 1]
            features, own = encoder(features.detach(), real), [*encoder.parameters()]
        # bridge and label side: plain linear maps
        sides = layer.enc.b, layer.ae.g, layer.ae.h
        b, g, h = (copy.deepcopy(_linear(part)) for part in sides)
        x, y = layer(x, y)
        torch.testing.assert_close(x[0][real], features[real].detach(), rtol=0, atol=1e-12)
        t = g(code).tanh()
        r = h(t).tanh() if level == 0 else h(t)
        autoencoder = F.cross_entropy(r, labels) if level == 0 else F.mse_loss(r, code)
        weights = real[..., None].double()
        pooled = (features * weights).sum(1) / weights.sum(1)
        associated = F.mse_loss(b(pooled).tanh(), t.detach())
        assert layer.loss() == pytest.approx((associated.item(), autoencoder.item()), abs=1e-12)
        _step([*own, *b.parameters()], associated)
        _step([*g.parameters(), *h.parameters()], autoencoder)
        layer.backward_and_update()
        code = t.detach()
        torch.testing.assert_close(y, code, rtol=0, atol=1e-12)
        for found, expected in zip(sides, (b, g, h), strict=True):
            _close(_linear(found).parameters(), expected.parameters())
        _close(in_their_order(blocks[level]) if level else [blocks[0].table.weight], own)
    assert not blocks[0].table.weight[0].any()


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
