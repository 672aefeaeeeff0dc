"""A packed LSTM learns under delayed gradients: it runs with the weights that it is called with."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from alkit.delayed import Pipeline, train_epoch
from alkit.models.lstm import BiLSTM


class _Head(nn.Linear):
    def forward(self, given):
        return super().forward(given[0].mean(1))


def _blocks():
    torch.manual_seed(0)
    return [BiLSTM(4, 3, packed=True).double(), _Head(6, 3).double()]


def _batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, 4, generator=generator, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [4], [3], [2], [5]])
    return (x, mask), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("method", ["seq", "pipedream", "fr"])
def test_a_step_is_that_of_backprop(method):
    blocks, (x, y) = _blocks(), _batch()
    twin = copy.deepcopy(blocks)
    sgd = torch.optim.SGD([p for block in twin for p in block.parameters()], lr=0.1)
    cross_entropy(twin[1](twin[0](x)), y).backward()
    sgd.step()

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    train_epoch(Pipeline(blocks, cross_entropy, [1], make), [(x, y)], method)
    for own, other in zip(blocks, twin, strict=True):
        for (name, found), expected in zip(own.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14, msg=name)
