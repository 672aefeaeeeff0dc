"""Whatever the layout, the executor and the store: the same training as a plain loop."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from alkit.data.parts import Pairs
from alkit.elastic.stage import average
from alkit.elastic.trainer import order
from studies.elastic.rivals import data_parallel
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    TASKS,
    Found,
    adamw,
    close,
    expected,
    images,
    make_vit,
    plain,
    same,
    sgd,
    train,
)

TWO = SETTINGS | {"workers": 2}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("switches", [*product([False, True], repeat=3)])
def test_elastic_training_is_plain_training(task, switches):
    make, data = TASKS[task]
    options = dict(zip(("pipe", "dp", "cache"), switches, strict=True))
    found = train(make(), data(), SETTINGS, workers=4, **options)
    same(found, expected(task))
    assert list(found.history.frozen) == [0, 2, 3, 3]
    assert found.history.train_s.between(0, 600).all()
    assert 0 < found.seconds < 600


OTHER = [{"workers": 2, "freeze": "none"}, {"workers": 2, "clip": None, "optimizer": sgd}]
OTHER += [{"workers": 1, "micro": 8, "schedule": "gpipe"}, {"workers": 4, "schedule": "gpipe"}]
# replicas of one or two samples: what a part of a batch weighs is exact
OTHER += [{"workers": 4, "batch_size": 5, "scheduler": None}]


@pytest.mark.parametrize("changes", OTHER, ids=" ".join)
def test_whatever_else_is_set_it_is_plain_training(changes):
    settings = SETTINGS | changes
    found = train(make_vit(), images(), settings)
    same(found, plain(make_vit(), images(), settings))
    assert found.history.stages[0] == changes["workers"]
    if settings["freeze"] != "none":
        assert found.history.replicas.max() == changes["workers"]


WRONG = [{"alpha": 0.5}, {"optimizer": partial(adamw, decay=0.02)}, {"clip": None}, {"seed": 1}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: next(iter(each)))
def test_the_oracle_is_not_blind(wrong):
    """One layer more frozen, or decay where none belongs, is far outside the tolerance."""
    other = train(make_vit(), images(), TWO | wrong)
    with pytest.raises(AssertionError):
        close(other, expected(), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_features_change_no_bit(dtype):
    data, options = Pairs(images().x.to(dtype), images().y), TWO | {"epochs": 6}
    stored = train(make_vit().to(dtype), data, options)
    computed = train(make_vit().to(dtype), data, options, cache=False)
    assert stored.history.hits.sum() > 0
    assert stored.history.advanced.sum() > 0
    assert torch.equal(stored.losses, computed.losses)
    close(stored, computed, 0.0)


def test_what_is_frozen_stays_bit_for_bit():
    """With momentum and decay around."""
    network, then = make_vit(), {}

    def rule(_):
        then.update(copy.deepcopy(network.state_dict()))
        return 2

    options = {"optimizer": partial(sgd, weight_decay=0.04), "lr": 0.1, "freeze": rule}
    found = train(network, images(), epochs=2, batch_size=8, **options)
    first = network.first(2)
    still = {name for name, own in then.items() if torch.equal(own, found.state[name])}
    assert still == {name for name in then if int(name.split(".")[1]) < first}


def test_norms_are_those_of_the_gradients():
    """One step an epoch: what the rule sees is the gradient of that step, before clipping."""
    seen, network, data = [], make_vit(), images(8)
    rule = lambda moment: seen.append(moment.norms[-1]) or 0  # noqa: E731
    train(copy.deepcopy(network), data, TWO, epochs=2, freeze=rule)
    rows = order(8, 0, 0)
    network.loss(network(data.x[rows]), data.y[rows]).backward()
    norms = []
    for layer in range(LAYERS):
        units = network.units[1 + 2 * layer : 3 + 2 * layer]
        flat = torch.cat([p.grad.flatten() for p in units.parameters()])
        norms.append(float(flat.square().mean().sqrt()))
    assert seen[0] == pytest.approx(norms, rel=1e-9)


def test_dropout_ends_where_units_freeze():
    """So their output can be stored; what is active goes on dropping out."""
    network, x = make_vit(0.3).train(), images().x
    assert not torch.equal(network.run(x, 0, 3, (0,)), network.run(x, 0, 3, (1,)))
    stored, computed = (train(make_vit(0.3), images(), TWO, cache=own) for own in (True, False))
    close(stored, computed)
    assert [each.training for each in stored.model.train().units] == [False] * 7 + [True] * 4


def test_a_replica_without_a_gradient_adds_zeros():
    """As of an expert that none of its samples chose; where no replica has one, there is none."""
    weights = [torch.zeros(2), torch.zeros(3), torch.zeros(1)]
    other = torch.cat([torch.ones(2), torch.zeros(3 + 1), torch.tensor([1.0, 0.0, 0.0])])
    weights[1].grad = torch.full((3,), 4.0)
    average(weights, lambda sent: (sent + other) / 2)
    first, second, third = (each.grad for each in weights)
    assert first.tolist() == [0.5] * 2
    assert second.tolist() == [2.0] * 3
    assert third is None


class Normed(nn.Module):
    """A unit whose running statistics have a scalar among them."""

    def __init__(self, unit):
        super().__init__()
        self.unit, self.norm = unit, nn.BatchNorm1d(16).double()

    def forward(self, x):
        return self.norm(self.unit(x).transpose(1, 2)).transpose(1, 2)


def test_batch_norm_can_be_stored():
    # SGD: Adam makes steps of the rounding errors that a bias before a norm has for a gradient
    settings = TWO | {"micro": 1, "optimizer": sgd, "lr": 0.05}

    def trained(cache):
        network = make_vit()
        for number in (0, 2, 6, 8):
            network.units[number] = Normed(network.units[number])
        return train(network, images(), settings, cache=cache)

    found = trained(cache=True)
    assert found.history.hits.sum() > 0
    seen = [int(own) for name, own in found.state.items() if name.endswith("batches_tracked")]
    assert (seen[0], seen[-1]) == (3, 21)  # frozen, and of two replicas
    close(found, trained(cache=False))


@pytest.mark.parametrize("task", TASKS)
def test_data_parallel_training_is_plain_training_without_freezing(task):
    """What a sceptic takes instead."""
    make, data = TASKS[task]
    settings = SETTINGS | {"freeze": "none"}
    found = data_parallel(make(), data(), settings)
    close(Found(found), plain(make(), data(), settings), 1e-10)
