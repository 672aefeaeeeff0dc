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


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ((X, Y), r"batch 0 must be a pair .* got torch.float32 of \(4, 6\)"),
        ([(X, X, Y)], r"got tuple of 3: several inputs are a tuple in it"),
        ([{"input_ids": X, "y": Y}], "got dict of 2: .* a dict has y as .labels."),
        ([(X, ["a", "b"])], "pandas.factorize makes class numbers"),
        ([X], "batch 0 must be a pair"),
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


@pytest.mark.parametrize("value", ["2", 2.0, True, [1]])
def test_numbers_as_texts(value):
    with pytest.raises(TypeError, match=r"workers is .*: it must be a whole number"):
        train_epoch(dense_model(2), [(X, Y)], workers=value)
    with pytest.raises(TypeError, match="epochs is"):
        alkit.fit(dense_model(1), datasets.load("digits"), epochs=value)
    with pytest.raises(TypeError, match="lr is '0.1': it must be a number"):
        dense_model(1)[0].set_lr("enc", "0.1")
    check_whole(workers=None, threads=1)


@pytest.mark.parametrize(
    "train",
    [
        lambda: alkit.fit([nn.Linear(6, 3)], (X, Y), method="elastic", clpi=1),
        lambda: alkit.fit([nn.Linear(6, 3)], (X, Y), method="splitfed", clpi=1),
    ],
    ids=["elastic", "split"],
)
def test_unknown_settings_list_the_names(train):
    with pytest.raises(TypeError, match=r"unknown settings clpi.*: there are .*(seed|clip)"):
        train()


@pytest.mark.parametrize("make", [delayed.Pipeline, alkit.BPModel])
def test_a_whole_network_in_place_of_blocks(make):
    class Own(nn.Module):
        pass

    with pytest.raises(TypeError, match="blocks is a whole Own, and .*Give a list of its blocks"):
        make(Own(), nn.functional.cross_entropy)
    with pytest.raises(TypeError, match="block 1 must be a module, got 3"):
        make([nn.Linear(1, 1), 3], nn.functional.cross_entropy)


def test_representations_are_one_line():
    digits = datasets.load("digits")
    record = train_epoch(dense_model(2), made_batches(3), "al")
    late = train_blocks([nn.Linear(6, 3)], nn.functional.cross_entropy, made_batches(3))
    shown = [digits.train, digits, digits.train.batches(4), record, record.timeline, late]
    for text in map(repr, shown):
        assert "\n" not in text
        assert len(text) < 400
        assert "[[" not in text


@pytest.mark.parametrize(
    ("method", "name", "meant"),
    [
        ("bp", "epoch", "epochs"),
        ("pipedream", "epoch", "epochs"),
        ("1f1b", "recomputes", "recompute"),
        ("al", "recipes", "recipe"),
        ("elastic", "freze", "freeze"),
        ("dtp", "iteration", "iterations"),
        ("pipelearn", "aggregate_evry", "aggregate_every"),
    ],
)
def test_a_name_that_is_nearly_right_is_recognised(method, name, meant):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    data = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(TypeError, match=f"unknown settings {name} .did you mean '{meant}'"):
        alkit.fit(net, data, method=method, progress=False, **{name: 1})


def test_a_method_that_is_nearly_right_is_recognised():
    data = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(ValueError, match=r"unknown method 'pipdream' \(did you mean 'pipedream'"):
        alkit.fit([torch.nn.Linear(4, 3)], data, method="pipdream")
