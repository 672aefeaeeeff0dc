"""What a rank holds: its own stage alone, as much as calculated, and no more than its budget."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from alkit.elastic import pipeline
from alkit.elastic.memory import Budget
from alkit.elastic.units import Units, World, bytes_of, is_dropped
from alkit.engine.launch import RankFailed
from alkit.engine.optimizers import made
from tests.unit.elastic.helpers import (
    PARTS,
    SETTINGS,
    TASKS,
    adamw,
    calculated,
    close,
    expected,
    images,
    make_vit,
    on_devices,
    parts,
    planner,
    sgd,
    train,
    training,
)

SCHEDULES = ("1f1b", "gpipe")


def _asked():
    """Return how many units of a rank's network are there, at every step's order."""
    network, there = make_vit(), []
    batches = pipeline._batches

    def looked(*step):
        units = network.units
        there.append([n for n, u in enumerate(units) if not any(map(is_dropped, u.parameters()))])
        return batches(*step)

    pipeline._batches = looked
    try:
        train(network, images(), SETTINGS, freeze="none", validation=images(6), ranks=2)
    finally:
        pipeline._batches = batches
    whole = not any(map(is_dropped, network.parameters()))
    return there, whole, [tuple(p.shape) for p in network.parameters()]


@pytest.fixture(scope="module")
def ranks():
    """What two ranks find, one run after the other."""
    runs = {
        f"{task} {schedule}": training(task, schedule=schedule, micro=4, test=TASKS[task][1](10))
        for task in TASKS
        for schedule in SCHEDULES
    }
    # as many stages to the end, for the budget of parameters is small
    return on_devices(runs | {"budget": training(budget=1e-9), "asked": _asked})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("task", TASKS)
def test_what_was_calculated_is_what_is_counted(task, schedule, ranks):
    """Every part but activations, every rank, every layout: to the byte."""
    make, _ = TASKS[task]
    found = ranks[f"{task} {schedule}"][0]
    close(found, expected(task))
    assert len(found.held) == 2 * SETTINGS["epochs"]
    for epoch, layout in enumerate(found.layouts):
        for rank in range(2):
            own = found.held[(found.held.epoch == epoch) & (found.held["rank"] == rank)]
            ours = calculated(make(), SETTINGS, layout)[rank % layout.stages]
            assert own[PARTS].iloc[0].to_dict() == parts(ours), (epoch, rank)
    assert {layout.stages for layout in found.layouts} == {1, 2}
    whole = sum(p.nbytes for p in make().parameters())
    first = found.held[found.held.epoch == 0]
    assert first.weights.sum() == whole
    assert first.weights.max() < 0.7 * whole


def test_frozen_layers_lie_on_first_stages_alone(ranks):
    found = ranks["budget"][0]
    close(found, expected())
    assert set(found.history.stages) == {2}
    last = found.held[found.held.epoch == 3].set_index("rank")
    assert last.frozen[0] > 0
    assert last.frozen[1] == 0


def test_a_rank_lets_go_of_what_is_not_its_own(ranks):
    """Also after an evaluation, for which all ranks have all; at the end all have all again."""
    (first, *whole), (second, *other) = ranks["asked"]
    units = len(make_vit().units)
    assert all(sorted(a + b) == list(range(units)) for a, b in zip(first, second, strict=True))
    assert len(first) == SETTINGS["epochs"]
    assert whole == other == [True, [tuple(p.shape) for p in make_vit().parameters()]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_does_not_fit_is_refused_before_the_first_step(ranks):
    options = {"ranks": ranks} if ranks > 1 else {"workers": 2}
    words = (
        r"stage \d of 2 needs [\d,]+ bytes with 0 frozen layers \(weights [\d,]+, gradients [\d,]+,"
        r" moments [\d,]+\) and memory_budget is 100,000: give more stages"
    )
    network = make_vit()
    with pytest.raises(ValueError, match=words):
        train(network, images(), SETTINGS, memory_budget=100_000, **options)
    assert all(
        torch.equal(a, b)
        for a, b in zip(network.parameters(), make_vit().parameters(), strict=True)
    )


def budgeted(settings, most, devices=2):
    """Look whether weights, gradients and moments fit, as a call does before a start."""
    layout, make = planner(make_vit(), settings, devices).at(0), partial(made, adamw)
    for stage in range(layout.stages):
        Budget(make_vit(), make, most).check(layout, stage)


def test_the_largest_rank_decides_to_the_byte():
    layout = planner(make_vit(), SETTINGS).at(0)
    most = max(held.total for held in calculated(make_vit(), SETTINGS, layout))
    budgeted(SETTINGS, most)
    with pytest.raises(ValueError, match=f"needs {most:,} bytes"):
        budgeted(SETTINGS, most - 1)


@pytest.mark.parametrize("optimizer", [adamw, sgd, torch.optim.SGD, torch.optim.Adafactor])
def test_the_moments_of_any_optimiser_are_calculated(optimizer):
    changes = {"optimizer": optimizer, "lr": 0.01, "epochs": 1, "freeze": "none"}
    found = train(make_vit(), images(), SETTINGS | changes)
    (own,) = calculated(make_vit(), SETTINGS | changes, found.layouts[0])
    assert found.held.moments.tolist() == [own.moments]


@pytest.mark.parametrize("ranks", [1, 2])
def test_activations_are_counted_in_the_first_step_and_refused_there(ranks):
    """To the byte; nothing has been trained then."""
    settings = SETTINGS | {"freeze": "none", "epochs": 1}
    options = {"ranks": ranks} if ranks > 1 else {}
    free = train(make_vit(), images(), settings, **options)
    stages = calculated(make_vit(), settings, free.layouts[0])
    most = max(
        replace(held, activations=int(seen)).total
        for held, seen in zip(stages, free.held.activations, strict=True)
    )
    train(make_vit(), images(), settings, memory_budget=most, **options)
    network = make_vit()
    with pytest.raises((ValueError, RankFailed), match=r"activations [\d,]+\) and memory_budget"):
        train(network, images(), settings, memory_budget=most - 1, **options)
    close(network.state_dict(), make_vit().state_dict(), 0.0)


# ---- what is let go


def test_shapes_stay_and_values_do_not_unless_a_kept_unit_shares_them():
    network = make_vit()
    sizes, optimizer = network.sizes(), adamw(network.parameters())
    network(images().x).sum().backward()
    optimizer.step()
    Units(network, optimizer, World(alone=True))._keep({0, 1})
    assert network.sizes() == sizes
    assert not network.units[5].qkv.weight.isfinite().any()
    kept = sum(p.numel() for unit in network.units[:2] for p in unit.parameters())
    there = bytes_of(t for own in optimizer.state.values() for t in own.values())
    assert there == 2 * 8 * kept + 4 * len(list(network.units[:2].parameters()))
    with pytest.raises(RuntimeError, match="written-to tensor"):
        network.units[5].norm.weight.data.copy_(torch.zeros(16))
    assert all(map(is_dropped, network.units[5].parameters()))
    network = make_vit()
    network.units[8].norm = network.units[1].norm
    optimizer = adamw(network.parameters())
    Units(network, optimizer, World(alone=True))._keep({1})
    assert not is_dropped(network.units[8].norm.weight)
    assert is_dropped(network.units[7].norm.weight)
