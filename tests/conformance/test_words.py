"""What can't be trained is said in a sentence, before the first step, whatever the method."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tests.conformance.families import EVERY, FAMILIES, flat, held, net, rows, sgd

X, Y = rows(32)


def nothing() -> DataLoader:
    return DataLoader(TensorDataset(X[:4], Y[:4]), 8, drop_last=True)


# what is given, and what is said: a model, the training part, options
REFUSED = {
    "an empty loader": (net, nothing, {}, "the data have no samples"),
    "bool labels": (net, lambda: [(X[:8], Y[:8] > 0)], {}, r"give y.long\(\) for classes"),
    "a rate that is none": (net, None, {"lr": float("nan")}, "lr is nan: it must be finite"),
    "a negative rate": (net, None, {"lr": -1}, "lr is -1: it must be finite and not negative"),
    "a clip": (net, None, {"clip": float("nan")}, "clip is nan: it must|takes no clip=: give opt"),
    "patience": (net, None, {"patience": 3}, r"takes no patience=: give callbacks=\[alkit.pat"),
    "labels from 1": (net, lambda: (X, Y + 1), {}, "label 3 of sample .* labels are 0 to 2"),
    "nothing to train": (lambda: net().requires_grad_(False), None, {}, "nothing to train"),
}
LATER = {"nothing to train": "al al_fm al_pipeline local_pipeline"}


@pytest.mark.parametrize("family", FAMILIES, ids=[each.method for each in FAMILIES])
@pytest.mark.parametrize("what", REFUSED)
def test_a_sentence_before_the_first_step(what, family):
    if family.method in LATER.get(what, "").split():
        pytest.skip("its layers bring bridges that learn")
    model, data, options, said = REFUSED[what]
    made = model()
    before = [p.clone() for p in made.parameters()]
    with pytest.raises((TypeError, ValueError), match=said):
        family.fit(made, (X, Y) if data is None else data(), **options)
    assert all(map(torch.equal, before, made.parameters()))


class Keeping(nn.Linear):
    """A block that keeps a value for the loss to read, as of sparsity or of balanced experts."""

    def forward(self, x):
        found = super().forward(x).tanh()
        self.kept = found.abs().mean()
        return found


def reading() -> dict:
    """Return losses by what they read besides the scores, each with its network."""
    penalised, keeping = net(), nn.Sequential(Keeping(8, 32), *net()[2:])
    return {
        "weights": (penalised, lambda: sum(p.abs().sum() for p in penalised.parameters())),
        "a block's value": (keeping, lambda: keeping[0].kept),
    }


@held()
@pytest.mark.parametrize("what", reading())
def test_a_loss_that_reads_more_than_scores_is_whole_or_refused(what, family):
    model, more = reading()[what]

    def loss(scores, y):
        return cross_entropy(scores, y) + 0.01 * more()

    if family.method in ("bp", "elastic"):  # one graph holds all
        trained = family.fit(model, [(X, Y)], loss=loss, optimizer=sgd, lr=0.1, **family.one).model
        model, more = reading()[what]
        steps = sgd(model.parameters(), 0.1)
        loss(model(X), Y).backward()
        steps.step()
        torch.testing.assert_close(flat(trained), flat(model), rtol=1e-5, atol=1e-6)
        return
    said = "can't take" if family.method == "pipelearn" else "besides that of the scores"
    with pytest.raises((ValueError, TypeError), match=said):
        family.fit(model, (X, Y), loss=loss)


@held()
def test_a_batch_that_is_nothing_is_no_end(family):
    """As of a collation that gives None where all of its samples are broken."""
    for data in ([None, (X[:8], Y[:8])], [(X[:8], Y[:8]), None, (X[8:], Y[8:])]):
        with pytest.raises(TypeError, match=r"batch \d must be a pair .* got None"):
            family.fit(net(), data)


TAKEN = {
    "numpy's whole numbers": (net, {"seed": np.int64(1), "epochs": np.int32(1)}),
    "a head wider than the labels": (lambda: net(10), {}),
    "ReLU(inplace=True) after a cut": (
        lambda: [nn.Linear(8, 8), nn.ReLU(inplace=True), *net()[:-1], nn.Linear(32, 3)],
        {"cuts": [1]},
    ),
    "layers without a size": (lambda: [nn.LazyLinear(8), nn.Tanh(), *net()], {}),
}
WITHOUT_CUTS = ("bp", "al", "al_fm", "al_pipeline", "local_pipeline", "elastic", "dtp")


@pytest.mark.parametrize("family", FAMILIES, ids=EVERY.split())
@pytest.mark.parametrize("what", TAKEN)
def test_what_is_taken(what, family):
    model, options = TAKEN[what]
    if family.method in WITHOUT_CUTS:
        options = {name: value for name, value in options.items() if name != "cuts"}
    assert np.isfinite(family.fit(model(), (X, Y), **options).history.loss).all()


def test_split_learning_refuses_states_that_are_no_tensors():
    class Counts(nn.Linear):
        def get_extra_state(self):
            return {"calls": 1}

        def set_extra_state(self, state):
            pass

    split = next(each for each in FAMILIES if each.method == "pipelearn")
    with pytest.raises(ValueError, match="unit 0 keeps _extra_state"):
        split.fit([Counts(8, 8), nn.Tanh(), nn.Linear(8, 3)], (X, Y))
