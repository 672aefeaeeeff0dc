"""First steps that go wrong: messages with what was given, what is allowed and what to do."""

import pytest
import torch
from torch import nn

import alkit
from alkit import train_epoch
from alkit.data import datasets
from alkit.data.given import as_pair
from tests.helpers import WIDTH, dense_model, made_batches, train_blocks

X, Y = made_batches(1)[0]


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([(X, X, Y)], r"got tuple of 3: several inputs are a tuple in it"),
        ([(X, ["a", "b"])], "pandas.factorize makes class numbers"),
        ([torch.zeros(2, WIDTH)], "must be a pair"),  # two samples are none
        (torch.utils.data.DataLoader(torch.zeros(2, WIDTH)), "batch 0 must be a pair"),
    ],
)
@pytest.mark.parametrize("method", ["al", "pipedream"])
def test_batches_that_are_no_pairs(batches, text, method):
    loss = nn.functional.cross_entropy
    train = {
        "al": lambda: train_epoch(dense_model(2), batches, "al"),
        "pipedream": lambda: train_blocks([nn.Linear(WIDTH, 3)], loss, batches),
    }[method]
    with pytest.raises(TypeError, match=text):
        train()


def test_pairs_pass_and_what_everybody_gives_becomes_one():
    mask = torch.ones(4, 2)
    assert as_pair((X, (Y, mask)), 0) == (X, (Y, mask))
    for x in (X, (X, mask), {"ids": X, "mask": mask}):
        assert as_pair((x, Y), 0) == (x, Y)
    assert len(train_epoch(dense_model(1), [[X, Y]], "al").losses) == 1
    numbers = Y.argmax(1)
    for batch in ((X.numpy(), numbers.numpy()), (X, numbers.tolist()), (X, numbers.int())):
        x, y = as_pair(batch, 0)
        assert torch.equal(x, X)
        assert torch.equal(y, numbers)
        assert y.dtype == torch.int64
    x, y = as_pair({"input_ids": X, "labels": numbers, "name": "text"}, 0)
    assert x == {"input_ids": X, "name": "text"}
    assert y is numbers


@pytest.mark.parametrize("value", [2.0, True])
def test_numbers_as_texts(value):
    with pytest.raises(TypeError, match=r"workers is .*: it must be a whole number"):
        train_epoch(dense_model(2), [(X, Y)], workers=value)
    with pytest.raises(TypeError, match="epochs is"):
        alkit.fit(dense_model(1), datasets.load("digits"), epochs=value)


@pytest.mark.parametrize("method", ["bp", "al", "1f1b", "pipedream", "elastic", "dtp", "pipelearn"])
def test_a_name_that_no_method_knows_is_not_swallowed(method):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    data = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(TypeError, match="unknown settings epoch .did you mean 'epochs'"):
        alkit.fit(net, data, method=method, progress=False, epoch=1)
