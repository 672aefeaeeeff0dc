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


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("method", ["seq", "pipedream", "fr"])
def test_a_step_is_that_of_backprop(method):
    blocks = nn.ModuleList([BiLSTM(4, 3, packed=True), _Head(6, 3)]).double()
    mask = torch.arange(6) < torch.tensor([[6], [4], [3], [2], [5]])
    x, y = (torch.randn(5, 6, 4, dtype=torch.float64), mask), torch.tensor([0, 1, 2, 0, 1])
    twin = copy.deepcopy(blocks)
    cross_entropy(twin[1](twin[0](x)), y).backward()
    sgd(twin.parameters()).step()
    train_epoch(Pipeline(blocks, cross_entropy, [1], sgd), [(x, y)], method)
    close = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(blocks.state_dict(), twin.state_dict(), **close)
