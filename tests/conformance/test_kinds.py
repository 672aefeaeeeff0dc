"""Kinds of faults that people's own code and files have met: red until a kind is mended."""

import random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, Dataset, IterableDataset

import alkit
from tests.conformance.families import FAMILIES, WIDTH, C, flat, held, loader, net, plain, rows, sgd

pytestmark = pytest.mark.filterwarnings("ignore")
X, Y = rows(32)
BATCHES = list(zip(X.split(8), Y.split(8), strict=True))
BACKPROP = [each for each in FAMILIES if each.method != "dtp"]  # no inverse
CHAIN = [each for each in BACKPROP if each.method not in ("pipelearn", "elastic")]  # x as given
OWN = [each for each in FAMILIES if each.method != "pipelearn"]  # takes a loss


# 1. train() and eval() of the user are called


@held(BACKPROP)
def test_an_optimiser_is_told_when_its_weights_are_used(family):
    told = []

    class Free(torch.optim.SGD):
        def train(self):
            told.append("train")

        def eval(self):
            told.append("eval")

    family.fit(net(), BATCHES, BATCHES, optimizer=Free, lr=0.1)
    assert (told[0], told[-1]) == ("train", "eval")


# 2. what the network returns reaches the loss


def test_a_network_s_own_loss_is_taken():
    class Own(nn.Linear):
        def forward(self, x, labels=None):
            scores = super().forward(x)
            given = {} if labels is None else {"loss": cross_entropy(scores, labels)}
            return SimpleNamespace(logits=scores, **given)

    model, data = Own(WIDTH, C), [({"x": x}, y) for x, y in BATCHES]
    truth = plain(model, BATCHES, lambda output, y: cross_entropy(output.logits, y))
    options = {"loss": "own", "compile": "steps", "optimizer": sgd, "lr": 0.1, "progress": False}
    alkit.fit(model, data, method="bp", **options)
    torch.testing.assert_close(flat(model), flat(truth))


# 3. nothing is decided by a few samples that later ones can contradict


@held([each for each in FAMILIES if each.method not in ("elastic", "pipelearn")])  # torch's words
def test_a_late_label_is_named(family):
    late = [*BATCHES[:3], (X[:8], Y[:8] + 7)]
    with pytest.raises(ValueError, match="label"):
        family.fit(net(), late)


@held([each for each in FAMILIES if each.method in "seq 1f1b ddg pipedream fr dtp".split()])
def test_late_rows_of_several_labels_are_refused(family):
    shares = [(x, one_hot(y, C).float()) for x, y in BATCHES]
    with pytest.raises(ValueError, match="add up to 1"):
        family.fit(net(), [*shares[:3], (X[:8], torch.ones(8, C))])


@held(FAMILIES)
def test_rows_in_memory_are_all_looked_at(family):
    shares = one_hot(Y, C).float()
    shares[20:] = 1
    with pytest.raises((ValueError, TypeError), match="add up to 1|give class numbers"):
        family.fit(net(), (X, shares))


@held()
def test_a_cell_that_is_no_number_is_named(family):
    x = X.clone()
    x[17, 5] = torch.nan
    with pytest.raises(ValueError, match=r"17.*5"):
        family.fit(net(), (x, Y))


# 4. a look leaves no trace


class Counts(nn.Module):
    """Counts its calls in a buffer and in an attribute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.n += 1
        self.calls += 1
        return x


@held(CHAIN)
def test_a_look_leaves_a_module_as_it_was(family):
    counts = Counts()
    again = 1 + (family.method == "fr")  # which runs forwards again
    family.fit(nn.Sequential(nn.Linear(WIDTH, 8), counts, nn.Tanh(), nn.Linear(8, C)), BATCHES)
    assert {counts.n.item(), counts.calls} <= {4, 4 * again}


class Once(IterableDataset):
    """Goes on where it was."""

    def __init__(self):
        self.rest = iter(list(zip(X, Y, strict=True)))

    def __iter__(self):
        return self.rest


@held(CHAIN)
def test_a_stream_that_can_be_read_once_loses_nothing(family):
    try:
        record = family.fit(net(), DataLoader(Once(), 8))
    except (TypeError, ValueError):
        return
    assert record.history.samples.tolist() == [32]


def test_a_look_draws_nothing():
    class Drawn(Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, at):
            return X[at] + random.random() + float(np.random.rand()), Y[at]  # noqa: NPY002

    random.seed(3)
    alkit.fit(net(), DataLoader(Drawn(), 8), method="bp", progress=False)
    after = random.random()
    random.seed(3)
    assert [random.random() for _ in range(33)][-1] == after


# 6. samples are not batches


@held([each for each in CHAIN if each.own_loss])
@pytest.mark.parametrize("kind", ["pairs", "dictionaries"])
def test_samples_are_no_batches(family, kind):
    ids = torch.randint(0, 20, (32, 6))

    class Mean(nn.Embedding):
        def forward(self, x):
            return super().forward(x["ids"] if isinstance(x, dict) else x).mean(-2)

    data = list(zip(ids, Y, strict=True))
    if kind == "dictionaries":
        data = [{"ids": x, "labels": y} for x, y in data]
    record = family.fit([Mean(20, 8), nn.Linear(8, C)], data)
    assert len(record.losses) == 1


# 13. what users miss

GIVEN = [X.numpy(), pd.DataFrame(X.numpy()), loader(32, shuffle=False), loader(32).dataset, BATCHES]


@held()
@pytest.mark.parametrize("given", GIVEN)
def test_predict_takes_what_fit_takes(family, given):
    assert family.fit(net(), BATCHES).predict(given).shape == (32, C)


def test_a_curve_is_drawn_while_it_trains(monkeypatch):
    from IPython.display import DisplayHandle

    shown = []
    monkeypatch.setattr(DisplayHandle, "display", lambda self, what: shown.append(("new", what)))
    monkeypatch.setattr(DisplayHandle, "update", lambda self, what: shown.append(("same", what)))
    callbacks = [alkit.lab.live("val_acc")]
    alkit.fit(net(), BATCHES, BATCHES, method="bp", callbacks=callbacks, epochs=2, progress=False)
    assert [(at, what.data[:4]) for at, what in shown] == [(w, b"\x89PNG") for w in ("new", "same")]
