"""First steps that go wrong: messages with what was given, what is allowed and what to do."""

import pytest
import torch
from torch import nn

import alkit
from alkit import delayed, train_epoch
from alkit.base.arguments import check_whole
from alkit.data import datasets
from alkit.data.given import as_pair
from tests.helpers import WIDTH, dense_model, made_batches, train_blocks

X, Y = made_batches(1)[0]
LOSS = nn.functional.cross_entropy
NET = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)]


class Own(nn.Module):
    pass


def nearly(method, name):
    return lambda: alkit.fit(NET, (X, Y), method=method, progress=False, **{name: 1})


def pairs(batches):
    return lambda: train_blocks([nn.Linear(WIDTH, 3)], LOSS, batches)


REFUSED = [
    (pairs((X, Y)), r"batch 0 must be a pair .* got torch.float32 of \(4, 6\)"),
    (pairs([(X, X, Y)]), "got tuple of 3: several inputs are a tuple in it"),
    (pairs([{"input_ids": X, "y": Y}]), "got dict of 2: .* a dict has y as .labels."),
    (pairs([(X, ["a", "b"])]), "pandas.factorize makes class numbers"),
    (pairs([torch.zeros(2, WIDTH)]), "must be a pair"),  # two samples are none
    (pairs(torch.utils.data.DataLoader(torch.zeros(2, WIDTH))), "batch 0 must be a pair"),
    (lambda: train_epoch(dense_model(2), [X], "al"), "batch 0 must be a pair"),
    (lambda: check_whole(workers=2.0), "workers is 2.0: it must be a whole number"),
    (lambda: check_whole(threads=1, workers=True), "workers is True: it must be a whole number"),
    (lambda: dense_model(1)[0].set_lr("enc", "0.1"), "lr is '0.1': it must be a number"),
    (lambda: alkit.BPModel(Own(), LOSS), "blocks is a whole Own, and .*Give a list of its blocks"),
    (lambda: delayed.Pipeline([NET[0], 3], LOSS), "block 1 must be a module, got 3"),
    (nearly("splitfed", "clpi"), "unknown settings clpi.*: there are .*seed"),
    (nearly("bp", "epoch"), "unknown settings epoch .did you mean 'epochs'"),
    (nearly("1f1b", "recomputes"), "unknown settings recomputes .did you mean 'recompute'"),
    (nearly("elastic", "freze"), "unknown settings freze .did you mean 'freeze'"),
    (nearly("pipdream", "lr"), r"unknown method 'pipdream' \(did you mean 'pipedream'"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_pairs_pass_and_what_everybody_gives_becomes_one():
    mask, numbers = torch.ones(4, 2), Y.argmax(1)
    assert as_pair((X, (Y, mask)), 0) == (X, (Y, mask))
    for x in (X, (X, mask), {"ids": X, "mask": mask}):
        assert as_pair((x, Y), 0) == (x, Y)
    for batch in ((X.numpy(), numbers.numpy()), (X, numbers.tolist()), (X, numbers.int())):
        x, y = as_pair(batch, 0)
        assert torch.equal(x, X)
        assert torch.equal(y, numbers)
        assert y.dtype == torch.int64
    x, y = as_pair({"input_ids": X, "labels": numbers, "name": "text"}, 0)
    assert x == {"input_ids": X, "name": "text"}
    assert y is numbers


def test_representations_are_one_line():
    digits = datasets.load("digits")
    record = train_epoch(dense_model(2), made_batches(3), "al")
    for text in map(repr, [digits.train, digits, digits.train.batches(4), record, record.timeline]):
        assert "\n" not in text
        assert len(text) < 400
        assert "[[" not in text
