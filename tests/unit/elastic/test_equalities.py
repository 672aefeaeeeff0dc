"""Whatever the layout, the executor and the store: the same training as a plain loop."""

import copy
import math
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from alkit.data.parts import Pairs
from alkit.elastic.freeze import cap
from alkit.elastic.stage import average
from alkit.elastic.trainer import Trainer, order
from alkit.engine import checkpoint
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    TASKS,
    adamw,
    close,
    expected,
    images,
    make_bert,
    make_vit,
    plain,
    same,
    sgd,
    texts,
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


class _Cut:
    """The published schedule, and Ctrl-C after some decisions."""

    def __init__(self, left):
        self.left = left

    def __call__(self, moment):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return cap(moment.layers, 1 / 3, moment.evaluation)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    cut, goes_on = _Cut(2), TWO | {"checkpoint": tmp_path / "run.pt"}
    with pytest.raises(KeyboardInterrupt):
        train(make_vit(), images(), goes_on, freeze=cut)
    with pytest.raises(ValueError, match="of another run: freeze"):
        train(make_vit(), images(), goes_on)
    held = checkpoint.load(tmp_path / "run.pt")["units"]["moments"]
    assert [bool(held[str(n)]) for n in range(len(make_vit().units))] == [False] * 7 + [True] * 4
    cut.left = 99
    # another layout: what it holds does not depend on one
    same(train(make_vit(), images(), goes_on | {"workers": 4}, freeze=cut), expected())


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


def test_the_history_says_what_changed_and_decisions_come_between_epochs():
    found = train(make_vit(), images(), TWO)
    columns = {"frozen": [0, 2, 3, 3], "stages": [2, 1, 1, 1], "replicas": [1, 2, 2, 2]}
    columns |= {"step": [3, 6, 9, 12], "cached": [False, True, True, True]}
    assert found.history[[*columns]].to_dict("list") == columns
    assert [layout.frozen for layout in found.layouts] == [0, 2, 3, 3]
    assert (found.history.train_s > 0).all()


@pytest.mark.parametrize(
    ("samples", "replicas", "drop_last", "sizes"),
    [
        (27, 1, False, [8, 8, 8, 3]),
        (27, 1, True, [8, 8, 8]),
        (25, 2, False, [8, 8, 9]),  # one sample is not enough for two replicas
        (3, 1, False, [3]),
    ],
)
def test_an_epoch_is_a_permutation_whose_last_step_takes_what_is_left(
    samples, replicas, drop_last, sizes
):
    now = SimpleNamespace(batch=8, replicas=replicas)
    run, plan = SimpleNamespace(drop_last=drop_last, layouts=[now]), SimpleNamespace(seed=0)
    steps = [rows for rows, _ in Trainer.batches(run, plan, range(samples), 0)]
    assert [len(rows) for rows in steps] == sizes
    every = order(samples, 0, 0)
    assert torch.equal(torch.cat(steps), every[: sum(sizes)])
    assert sorted(every.tolist()) == [*range(samples)]
    assert samples == 3 or not torch.equal(every, order(samples, 0, 1))


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


def test_a_weight_of_two_units_in_one_stage_is_right():
    def tied():
        network = make_vit()
        network.units[7].f.out_proj.weight = network.units[1].f.out_proj.weight
        return network

    settings = SETTINGS | {"freeze": "none", "clip": 0.05}
    close(train(tied(), images(), settings), plain(tied(), images(), settings))


@pytest.mark.parametrize("hook", ["forward", "backward"])
def test_an_output_and_a_gradient_that_are_not_finite_end_the_run(hook):
    network = make_vit()
    if hook == "forward":
        network.units[2].register_forward_hook(lambda *given: given[-1] * math.nan)
    else:
        network.units[2].register_full_backward_hook(
            lambda module, above, below: tuple(torch.full_like(g, math.nan) for g in above)
        )
    with pytest.raises(FloatingPointError, match=f"loss is nan at batch {hook == 'backward':d}"):
        train(network, images(), SETTINGS)


def test_what_is_handed_on_may_be_infinite():
    """Scores are often masked by adding minus infinity: that is no fault."""
    data = texts()
    masked = Pairs((*data.x, torch.full((24, 1), -math.inf)), data.y)
    same(train(make_bert(), masked, TWO), expected("bert"))


class Normed(nn.Module):
    """A unit whose running statistics have a scalar among them."""

    def __init__(self, unit):
        super().__init__()
        self.unit, self.norm = unit, nn.BatchNorm1d(16).double()

    def forward(self, x):
        return self.norm(self.unit(x).transpose(1, 2)).transpose(1, 2)


def normed():
    network = make_vit()
    for number in (0, 2, 6, 8):
        network.units[number] = Normed(network.units[number])
    return network


def statistics(found):
    return [int(own) for name, own in found.state.items() if name.endswith("batches_tracked")]


# SGD: Adam makes steps of the rounding errors that a bias before a norm has for a gradient
NORMED = TWO | {"micro": 1, "optimizer": sgd, "lr": 0.05}


def test_batch_norm_can_be_stored():
    found, without = (train(normed(), images(), NORMED, cache=own) for own in (True, False))
    assert found.history.hits.sum() > 0
    assert (statistics(found)[0], statistics(found)[-1]) == (3, 21)  # frozen, and of two replicas
    close(found, without)
