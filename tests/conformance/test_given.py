"""x, y and the loss as given: numbers stay numbers, all classes are the scores', numpy is read."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import alkit
from tests.conformance.families import (
    BATCH,
    FAMILIES,
    WIDTH,
    C,
    flat,
    held,
    loader,
    net,
    plain,
    rows,
    sgd,
)

pytestmark = pytest.mark.filterwarnings("ignore")
OWN = [each for each in FAMILIES if each.own_loss]
EXACT = [each for each in FAMILIES if each.exact]


def compared(family, data):
    """Return what the loss was given as targets: dimensions, and whether they are floats."""
    seen = []

    def loss(scores, y):
        seen.append((y.dim(), y.is_floating_point()))
        return cross_entropy(scores, y)

    family.fit(net(), data, loss=loss)
    return set(seen)


@held(OWN)
def test_the_loss_gets_the_class_numbers_of_a_loader(family):
    assert compared(family, loader(64)) == {(1, False)}


@held([each for each in EXACT if each.own_loss])
def test_class_weights_are_those_of_a_plain_loop(family):
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 20.0]))
    data, model = rows(64), net()
    truth = plain(model, [data], weighted)
    family.fit(model, data, loss=weighted, lr=0.1, optimizer=sgd, batch_size=64, **family.one)
    torch.testing.assert_close(flat(model), flat(truth))


@held([each for each in EXACT if each.own_loss])
def test_a_loss_that_does_not_say_what_it_is_over_is_exact_or_refused(family):
    def summed(scores, y):
        return cross_entropy(scores, y, reduction="sum")

    data, model = rows(64), net()
    before, truth = flat(model), plain(model, [data], summed, lr=0.001)
    options = {"lr": 0.001, "optimizer": sgd, "batch_size": 64} | family.one
    if "micro" in family.one:
        with pytest.raises(ValueError, match="does not say what it is over"):
            family.fit(model, data, loss=summed, **options)
        truth = model
        assert torch.equal(flat(model), before)
    else:
        family.fit(model, data, loss=summed, **options)
    torch.testing.assert_close(flat(model), flat(truth))


@held(EXACT)
def test_a_step_is_the_plain_loop_s(family):
    data, model = rows(64), net()
    truth = plain(model, [data])
    family.fit(model, data, lr=0.1, optimizer=sgd, batch_size=64, **family.one)
    torch.testing.assert_close(flat(model), flat(truth))


@held()
def test_a_column_of_whole_numbers_is_refused_before_the_first_step(family):
    x, y = rows(64)
    model = net()
    before = flat(model)
    with pytest.raises(ValueError, match="y\\[:, 0\\]"):
        family.fit(model, (x, y[:, None]), lr=0.01)
    assert torch.equal(flat(model), before)


class Scaled(nn.Module):
    """A layer whose input comes with a vector that belongs to all samples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, C)

    def forward(self, x):
        return self.layer(x[0] * x[1].mean())


def with_vector(length):
    """Return a loader whose batches are ((samples, a vector for all), classes)."""
    vector = torch.arange(float(length)) / length

    def collate(samples):
        x, y = torch.utils.data.default_collate(samples)
        return (x, vector), y

    return loader(96, shuffle=False, collate_fn=collate)


@held(EXACT)
@pytest.mark.parametrize("length", [1, 5])
def test_a_vector_that_belongs_to_all_samples_is_not_cut(family, length):
    torch.manual_seed(0)
    model, data = nn.Sequential(Scaled()), with_vector(length)
    if family.method in ("pipelearn", "elastic"):
        with pytest.raises((TypeError, ValueError), match="give as many|one tensor"):
            family.fit(model, data)
        return
    expected = plain(model, list(data))
    cuts = {} if family.method == "bp" else {"cuts": []}
    family.fit(model, data, optimizer=sgd, lr=0.1, epochs=1, **family.one | cuts)
    assert (flat(model) - flat(expected)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("method", "options"),
    [("1f1b", {"micro": 2, "cuts": []}), ("elastic", {}), ("pipelearn", {"workers": 1})],
)
def test_a_vector_as_long_as_the_batch_is_not_cut_in_silence(method, options):
    model = nn.Sequential(Scaled())
    with pytest.raises(ValueError, match="row for each sample"):
        alkit.fit(model, with_vector(BATCH), method=method, progress=False, **options)


class Centred(nn.Linear):
    """A twentieth of the batch's mean is enough to make a part of it another thing."""

    def forward(self, x):
        x = super().forward(x)
        return x - 0.05 * x.mean(0)


def test_a_network_that_looks_at_the_whole_batch_gets_no_part_of_it():
    blocks = [nn.Linear(WIDTH, WIDTH), Centred(WIDTH, C)]
    with pytest.raises(ValueError, match="of half a batch the network makes something else"):
        alkit.fit(blocks, loader(96), method="1f1b", micro=2, progress=False)


class TwoHeads(nn.Module):
    """Scores and a number for each sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.classes, self.number = nn.Linear(16, C), nn.Linear(16, 1)

    def forward(self, x):
        x = self.body(x)
        return self.classes(x), self.number(x)


def of_both(outputs, targets):
    return cross_entropy(outputs[0], targets[0]) + (outputs[1] - targets[1]).square().mean()


# dtp has no inverse of it, elastic training deals one target
@held([each for each in OWN if each.method not in ("dtp", "elastic")])
def test_several_outputs_have_several_targets(family):
    x, y = rows(48)
    batches = [(x[i : i + 16], (y[i : i + 16], x[i : i + 16, :1])) for i in (0, 16, 32)]
    of_both.reduction = "mean"

    def right(outputs, targets):
        return (outputs[0].argmax(1) == targets[0]).float().mean()

    options = {"loss": of_both, "optimizer": sgd, "lr": 0.1, "metrics": {"right": right}}
    model = TwoHeads()
    record = family.fit(model, batches, batches, batches, **options, **family.one)
    if family.exact:
        torch.testing.assert_close(flat(model), flat(plain(TwoHeads(), batches, of_both)))
    assert {"loss", "right"} <= set(record.metrics)
