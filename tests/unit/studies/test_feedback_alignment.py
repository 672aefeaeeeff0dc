"""Feedback alignment and its kin against backprop and explicit matrices; what each leaves alone."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from alkit.dtp import Block, Net, network
from alkit.dtp.pieces import Affine
from studies.dtp.feedback_alignment import RULES
from tests.unit.dtp.helpers import batch

WIDTHS = (5, 7, 6, 4)  # of the inputs, two hidden layers and the classes


def dense(seed: int = 0) -> Net:
    """Return three layers whose loss is a mean over the samples."""
    pairs = zip(WIDTHS, WIDTHS[1:], strict=False)
    blocks = [Block(nn.Linear(a, b), nn.ELU()) for a, b in pairs]
    blocks[-1] = Block(nn.Linear(*WIDTHS[-2:]))
    return Net(blocks, seed=seed).double()


def rows(size: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, WIDTHS[0], generator=generator, dtype=torch.float64)
    return x, torch.arange(size) % WIDTHS[-1]


def ruled(rule: str, net: Net, x: Tensor, seed: int = 0) -> Net:
    return RULES[rule](net, x, seed).double()


def gradients(net: Net, x: Tensor, y: Tensor) -> list[Tensor]:
    own = [p for block in net for p in block.forward_parameters()]
    return list(torch.autograd.grad(net.loss(net(x), y), own))


def by_hand(weights: list[Tensor], biases: list[Tensor], x: Tensor, y: Tensor, send) -> list:
    """Return gradients of all W and b, where `send` gives a hidden layer's error before its slope.

    Args:
        send: of (layer, the error of the next layer's z, the output's error).
    """
    h, z = [x], []
    for w, b in zip(weights, biases, strict=True):
        z.append(h[-1] @ w.T + b)
        h.append(elu(z[-1]))
    wanted = nn.functional.one_hot(y, len(weights[-1])).double()
    last = (z[-1].softmax(1) - wanted) / len(x)
    errors = [last]
    for n in (1, 0):
        slope = torch.where(z[n] > 0, 1.0, z[n].exp())
        errors.insert(0, send(n, errors[0], last) * slope)
    found = []
    for error, inputs in zip(errors, h[:-1], strict=True):
        found += [error.T @ inputs, error.sum(0)]
    return found


def parts(net: Net) -> list[Affine]:
    return [part for block in net for part in block.affine]


# ---- against backprop, and by hand ----


@pytest.mark.parametrize("name", ["dense", "tiny", "lenet"])
def test_alignment_with_transposed_weights_is_backprop(name):
    x, y = rows() if name == "dense" else batch(16 if name == "tiny" else 32)
    net = dense() if name == "dense" else network(name).double()
    expected = gradients(net, x, y)
    aligned = ruled("fa", net, x)
    other = gradients(aligned, x, y)
    for part in parts(aligned):
        part.back.weight.data.copy_(part.transposed())
    for ours, wanted in zip(gradients(aligned, x, y), expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(other[0], expected[0], rtol=0.1)  # random weights are no transposes
    for ours, wanted in zip(other[-2:], expected[-2:], strict=True):
        torch.testing.assert_close(ours, wanted)  # the last block needs no feedback


@pytest.mark.parametrize("rule", ["fa", "dfa"])
def test_alignment_by_hand(rule):
    x, y = rows()
    net = ruled(rule, dense(), x)
    layers = parts(net)
    weights, biases = zip(*((each.own.weight, each.own.bias) for each in layers), strict=True)
    if rule == "fa":
        send = lambda n, after, last: after @ layers[n + 1].back.weight.T  # noqa: E731
    else:
        direct = [net.direct_0, net.direct_1]  # (classes, values of a block's output)
        assert [tuple(each.shape) for each in direct] == [(4, 7), (4, 6)]
        send = lambda n, after, last: last @ direct[n]  # noqa: E731
    hand = by_hand(weights, biases, x, y, send)
    for ours, wanted in zip(gradients(net, x, y), hand, strict=True):
        torch.testing.assert_close(ours, wanted)


# ---- what a training leaves alone ----
