"""Whatever the layout, the executor and the store: the same training as a plain loop."""

import copy
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from alkit.data.parts import Pairs
from alkit.elastic.stage import average
from alkit.elastic.trainer import Trainer, order
from alkit.elastic.units import Units, World
from alkit.engine import checkpoint
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    TASKS,
    Table,
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


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("switches", [*product([False, True], repeat=3)])
def test_elastic_training_is_plain_training(task, switches):
    make, data = TASKS[task]
    options = dict(zip(("pipe", "dp", "cache"), switches, strict=True))
    found = train(make(), data(), SETTINGS, workers=4, **options)
    same(found, expected(task))
    assert list(found.history.frozen) == [0, 2, 3, 3]


SGD = {"optimizer": sgd, "lr": 0.05}
OTHER = [{"workers": 2, "freeze": "none"}, {"workers": 2, "clip": None, **SGD}]
OTHER += [
    {"workers": stages, "micro": micro, "schedule": "gpipe"}
    for stages, micro in product([1, 2, 4], [1, 2, 8])
]


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_whatever_else_is_set_it_is_plain_training(changes):
    settings = SETTINGS | changes
    found = train(make_vit(), images(), settings)
    same(found, plain(make_vit(), images(), settings))
    assert found.history.stages[0] == changes["workers"]


def test_the_oracle_is_not_blind():
    """One layer more frozen, or decay where none belongs, is far outside the tolerance."""
    for changes in (
        {"alpha": 0.5},
        {"optimizer": partial(adamw, decay=0.02)},
        {"clip": None},
        {"seed": 1},
    ):
        other = train(make_vit(), images(), SETTINGS, **{"workers": 2} | changes)
        with pytest.raises(AssertionError):
            close(other, expected(), 1e-6)


def test_micro_batches_in_single_precision():
    """SGD: Adam makes whole steps of rounding errors."""
    options = {"settings": SETTINGS | SGD, "workers": 2}
    one, eight = (train(make_vit().float(), single(), micro=n, **options) for n in (1, 8))
    close(eight, one, 1e-5)


def test_stored_features_change_no_bit():
    """Single precision, the same micro-batches on both sides."""
    options = {"settings": SETTINGS, "workers": 2, "epochs": 6}
    stored = train(make_vit().float(), single(), **options)
    computed = train(make_vit().float(), single(), cache=False, **options)
    assert stored.history.hits.sum() > 0
    assert stored.history.advanced.sum() > 0
    assert torch.equal(stored.losses, computed.losses)
    close(stored, computed, 0.0)


def test_what_is_frozen_stays_bit_for_bit():
    """With momentum, decay and old gradients around."""
    network = make_vit()
    optimizer = sgd(network.parameters(), lr=0.1, weight_decay=0.04)
    units = Units(network, optimizer, World(alone=True))
    for _ in range(3):
        network(images().x).sum().backward()
        optimizer.step()
    units.freeze(2)
    still = copy.deepcopy(network.state_dict())
    optimizer.step()
    last = network.first() - 1
    for name, tensor in still.items():
        same = torch.equal(tensor, network.state_dict()[name])
        assert same or int(name.split(".")[1]) > last, name
    before = copy.deepcopy(network.state_dict())
    options = {"optimizer": partial(sgd, weight_decay=0.04), "lr": 0.1, "freeze": Table((2,))}
    found = train(network, images(), epochs=3, batch_size=8, **options)
    for name, tensor in before.items():
        number = int(name.split(".")[1])
        if number <= last:
            assert torch.equal(tensor, found.state[name]), name
    assert not torch.equal(before["units.6.f.0.weight"], found.state["units.6.f.0.weight"])


def test_training_goes_on_from_a_checkpoint(tmp_path):
    path = tmp_path / "run.pt"
    options = {"settings": SETTINGS, "workers": 2}
    whole = train(make_vit(), images(), **options)
    cut = _Cut(2)
    with pytest.raises(KeyboardInterrupt):
        train(make_vit(), images(), checkpoint=path, **options, freeze=cut)
    with pytest.raises(ValueError, match="of another run: freeze"):
        train(make_vit(), images(), checkpoint=path, **options)
    held = checkpoint.load(path)["units"]["moments"]
    assert [bool(held[str(n)]) for n in range(len(make_vit().units))] == [False] * 7 + [True] * 4
    cut.left = 99
    # another layout: what it holds does not depend on one
    found = train(make_vit(), images(), checkpoint=path, **options | {"workers": 4}, freeze=cut)
    close(found, whole)
    assert found.losses.tolist() == pytest.approx(whole.losses.tolist(), abs=1e-12)


class _Cut:
    """The published schedule, and Ctrl-C after some decisions."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, moment):
        from alkit.elastic.freeze import cap

        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return cap(moment.layers, 1 / 3, moment.evaluation)


def test_norms_are_those_of_the_gradients():
    """One step an epoch: what the rule sees is the gradient of that step, before clipping."""
    seen = []

    def look(moment):
        seen.append(moment.norms[-1])
        return 0

    network, data = make_vit(), images(8)
    train(copy.deepcopy(network), data, SETTINGS, epochs=2, freeze=look, workers=2)
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
    network, x = make_vit(0.3), images().x
    network.train()
    assert not torch.equal(network.run(x, 0, 3, (0,)), network.run(x, 0, 3, (1,)))
    network.freeze(1)
    network.train()
    assert torch.equal(network.run(x, 0, 3, (0,)), network.run(x, 0, 3, (1,)))
    assert network.units[3].training
    options = {"settings": SETTINGS, "workers": 2}
    stored = train(make_vit(0.3), images(), **options)
    computed = train(make_vit(0.3), images(), cache=False, **options)
    close(stored, computed)


def test_the_history_says_what_changed_and_decisions_come_between_epochs():
    found = train(make_vit(), images(), SETTINGS, workers=2)
    columns = {"frozen": [0, 2, 3, 3], "stages": [2, 1, 1, 1], "replicas": [1, 2, 2, 2]}
    columns |= {"step": [3, 6, 9, 12], "cached": [False, True, True, True]}
    assert found.history[[*columns]].to_dict("list") == columns
    assert [layout.frozen for layout in found.layouts] == [0, 2, 3, 3]
    assert (found.history.train_s > 0).all()


def test_orders_are_permutations():
    epochs = [order(24, 0, epoch) for epoch in range(3)]
    assert all(sorted(rows.tolist()) == list(range(24)) for rows in epochs)
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("samples", "replicas", "drop_last", "sizes"),
    [
        (24, 1, False, [8, 8, 8]),
        (27, 1, False, [8, 8, 8, 3]),
        (27, 1, True, [8, 8, 8]),
        (25, 2, False, [8, 8, 9]),  # one sample is not enough for two replicas
        (3, 1, False, [3]),
    ],
)
def test_the_last_step_takes_what_is_left(samples, replicas, drop_last, sizes):
    now = SimpleNamespace(batch=8, replicas=replicas)
    run, plan = SimpleNamespace(drop_last=drop_last, layouts=[now]), SimpleNamespace(seed=0)
    steps = [rows for rows, _ in Trainer.batches(run, plan, range(samples), 0)]
    assert [len(rows) for rows in steps] == sizes
    assert torch.equal(torch.cat(steps), order(samples, 0, 0)[: sum(sizes)])


def single():
    return Pairs(images().x.float(), images().y)


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
