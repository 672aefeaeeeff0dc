"""Whatever the layout, the executor and the store: the same training as a plain loop."""

import copy
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from alkit.elastic import Recipe, Settings
from alkit.elastic.cache import Cache
from alkit.elastic.examples import order, parts_of
from alkit.elastic.optim import Optimizer
from alkit.elastic.segment import schedule_of
from alkit.elastic.trainer import Trainer
from alkit.engine import checkpoint
from alkit.schedule.validate import validate
from tests.unit.elastic.helpers import (
    LAYERS,
    TASKS,
    Table,
    close,
    expected,
    images,
    make_vit,
    plain,
    same,
    train,
)


@pytest.mark.parametrize("executor", ["single", "threads"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("switches", [*product([False, True], repeat=3)])
def test_elastic_training_is_plain_training(executor, task, switches, settings):
    make, data = TASKS[task]
    options = dict(zip(("pipe", "dp", "cache"), switches, strict=True)) | {"executor": executor}
    found = train(make(), data(), settings, devices=4, stages=4, **options)
    same(found, expected(task))
    assert [m.frozen for m in found.messages] == [0, 2, 3, 3]


SGD = Recipe("sgd", lr=0.05, weight_decay=0.01, clip=None)
OTHER = [{"devices": 2, "freeze": "none"}, {"devices": 2, "recipe": SGD}]
OTHER += [
    {"devices": stages, "micro": micro, "schedule": "gpipe"}
    for stages, micro in product([1, 2, 4], [1, 2, 8])
]


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_whatever_else_is_set_it_is_plain_training(changes, settings):
    settings = replace(settings, **changes)
    found = train(make_vit(), images(), settings)
    same(found, plain(make_vit(), images(), settings))
    assert found.history.stages[0] == changes["devices"]


def test_the_oracle_is_not_blind(settings):
    """One layer more frozen, or decay where none belongs, is far outside the tolerance."""
    for changes in (
        {"freeze_options": {"alpha": 0.5}},
        {"recipe": replace(settings.recipe, weight_decay=0.02)},
        {"recipe": replace(settings.recipe, clip=None)},
        {"seed": 1},
    ):
        other = train(make_vit(), images(), settings, devices=2, **changes)
        with pytest.raises(AssertionError):
            close(other, expected(), 1e-6)


def test_micro_batches_in_single_precision(settings):
    """SGD: Adam makes whole steps of rounding errors."""
    options = {"settings": replace(settings, recipe=Recipe("sgd", lr=0.05)), "devices": 2}
    one, eight = (train(make_vit().float(), single(), micro=n, **options) for n in (1, 8))
    close(eight, one, 1e-5)


def test_stored_features_change_no_bit(settings):
    """Single precision, the same micro-batches on both sides."""
    options = {"settings": settings, "devices": 2, "epochs": 6}
    stored = train(make_vit().float(), single(), **options)
    computed = train(make_vit().float(), single(), cache=False, **options)
    assert stored.history.hits.sum() > 0
    assert stored.history.advanced.sum() > 0
    assert torch.equal(stored.losses, computed.losses)
    close(stored, computed, 0.0)


def test_what_is_frozen_stays_bit_for_bit():
    """With momentum, decay and old gradients around."""
    network = make_vit()
    optimizer = Optimizer(network, Recipe("sgd", lr=0.1, weight_decay=0.04))
    for _ in range(3):
        network(images().x).sum().backward()
        optimizer.step(1.0)
    network(images().x).sum().backward()
    network.freeze(2)
    optimizer.drop_frozen()
    still = copy.deepcopy(network.state_dict())
    optimizer.step(1.0)
    last = network.first() - 1
    for name, tensor in still.items():
        same = torch.equal(tensor, network.state_dict()[name])
        assert same or int(name.split(".")[1]) > last, name
    before = copy.deepcopy(network.state_dict())
    found = train(
        network,
        images(),
        epochs=3,
        batch=8,
        freeze=Table((2,)),
        recipe=Recipe("sgd", lr=0.1, weight_decay=0.04),
    )
    for name, tensor in before.items():
        number = int(name.split(".")[1])
        if number <= last:
            assert torch.equal(tensor, found.state[name]), name
    assert not torch.equal(before["units.6.up.weight"], found.state["units.6.up.weight"])


def test_advanced_features_are_those_of_all_units(tmp_path):
    network, data = make_vit(), images()
    rows = torch.arange(len(data))
    cache = Cache(network, data.inputs, tmp_path)
    for generation, frozen in enumerate((1, 3, 4)):
        network.freeze(frozen)
        expected = network.prefix(data.x)
        cache.make(generation, frozen, samples=len(data))
        cache.join(generation)
        assert torch.equal(cache.features(rows), expected)
        cache.settle()
        assert torch.equal(cache.features(rows), expected)
        counters = cache.taken_counters()
        assert counters.hits == len(data)
        assert (counters.misses, counters.advanced) == ((24, 0) if generation == 0 else (0, 24))
    cache.close()


def test_training_goes_on_from_a_checkpoint(settings, tmp_path):
    path = tmp_path / "run.pt"
    options = {"settings": settings, "devices": 2}
    whole = train(make_vit(), images(), **options)
    cut = _Cut(2)
    with pytest.raises(KeyboardInterrupt):
        train(make_vit(), images(), checkpoint=path, **options, freeze=cut, freeze_options={})
    with pytest.raises(ValueError, match="of another run: freeze"):
        train(make_vit(), images(), checkpoint=path, **options)
    held = checkpoint.load(path)["moments"]
    assert [bool(held[str(n)]) for n in range(len(make_vit().units))] == [False] * 7 + [True] * 4
    cut.left = 99
    # another layout: what it holds does not depend on one
    found = train(make_vit(), images(), checkpoint=path, **options | {"devices": 4}, freeze=cut)
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


def test_norms_are_those_of_the_gradients(settings):
    """One step an epoch: what the rule sees is the gradient of that step, before clipping."""
    seen = []

    def look(moment):
        seen.append(moment.norms[-1])
        return 0

    network, data = make_vit(), images(8)
    settings = replace(settings, epochs=2, freeze=look)
    train(copy.deepcopy(network), data, replace(settings, devices=2))
    rows = order(8, 0, 0)
    network.loss(network(data.x[rows]), data.y[rows]).backward()
    norms = []
    for layer in range(LAYERS):
        units = network.units[1 + 2 * layer : 3 + 2 * layer]
        flat = torch.cat([p.grad.flatten() for p in units.parameters()])
        norms.append(float(flat.square().mean().sqrt()))
    assert seen[0] == pytest.approx(norms, rel=1e-9)


def test_dropout_does_not_depend_on_the_executor_and_ends_where_units_freeze(settings):
    states = [
        train(make_vit(0.3), images(), settings, devices=2, executor=executor).state
        for executor in ("single", "threads")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # So their output can be stored; what is active goes on dropping out.
    network, x = make_vit(0.3), images().x
    network.train()
    assert not torch.equal(network.run(x, 0, 3, (0,)), network.run(x, 0, 3, (1,)))
    network.freeze(1)
    network.train()
    assert torch.equal(network.run(x, 0, 3, (0,)), network.run(x, 0, 3, (1,)))
    assert network.units[3].training
    options = {"settings": settings, "devices": 2}
    stored = train(make_vit(0.3), images(), **options)
    computed = train(make_vit(0.3), images(), cache=False, **options)
    close(stored, computed)


def test_phases_add_up_lines_name_their_units_and_decisions_come_between_epochs(settings):
    found = train(make_vit(), images(), settings, devices=2)
    phases = found.history[["frozen_s", "read_s", "pipe_s", "reduce_s", "update_s"]]
    assert phases.sum(axis=1).tolist() == pytest.approx(found.history.train_s.tolist())
    assert (phases >= 0).all().all()
    trained = [line for line in found.lines if "TRAIN" in line]
    assert len(trained) == settings.epochs
    assert "[epoch 1 step 6] TRAIN loss" in trained[1]
    assert "samples_per_s" in trained[1]
    assert "TRANSFORM frozen 0->2/4  pipeline 2->1  replicas 1->2" in found.lines[3]
    assert list(found.history.step) == list(found.segments.step) == [3, 6, 9, 12]
    assert [m.frozen for m in found.messages] == [0, 2, 3, 3]


def test_orders_are_permutations_that_do_not_depend_on_replicas():
    epochs = [order(24, 0, epoch) for epoch in range(3)]
    assert all(sorted(rows.tolist()) == list(range(24)) for rows in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    batch = epochs[0][:8]
    for replicas in (1, 2, 4):
        parts = parts_of(batch, replicas, 2)
        assert [len(own) for own in parts] == [2] * replicas
        assert torch.equal(torch.cat([part for own in parts for part in own]), batch)


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
    now = SimpleNamespace(layout=SimpleNamespace(batch=8, replicas=replicas))
    run = SimpleNamespace(settings=Settings(drop_last=drop_last), data=range(samples), pipeline=now)
    run._least = 8 if drop_last else 1
    steps = [rows for rows, _ in Trainer.batches(run, None, None, 0)]
    assert [len(rows) for rows in steps] == sizes
    assert torch.equal(torch.cat(steps), order(samples, 0, 0)[: sum(sizes)])


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize("joint", [False, True])
def test_schedules_are_sound(kind, joint):
    validate(schedule_of(kind, 3, 4, joint=joint))


def single():
    return replace(images(), x=images().x.float())
