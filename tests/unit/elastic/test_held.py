"""What a rank holds: its own stage alone, as much as calculated, and no more than its budget."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from alkit.elastic import Recipe
from alkit.elastic.decider import foresee
from alkit.elastic.memory import under_way
from alkit.elastic.optim import Optimizer
from alkit.elastic.sync import is_dropped, keep, lent
from alkit.records import results
from studies.elastic import memory as study
from studies.elastic.tasks import Task
from tests.unit.elastic.helpers import (
    ANY,
    PARTS,
    SETTINGS,
    TASKS,
    close,
    expected,
    forecast,
    images,
    make_vit,
    on_devices,
    train,
    training,
)

SCHEDULES = ("1f1b", "gpipe")
TEST = images(10)


def _asked(**own):
    """Return how many units of a rank's network are there, at every step's order."""
    from alkit.elastic import pipeline

    network, there = make_vit(), []
    batches = pipeline.Pipeline._batches

    def looked(self, segment):
        units = network.units
        there.append([n for n, u in enumerate(units) if not any(map(is_dropped, u.parameters()))])
        return batches(self, segment)

    pipeline.Pipeline._batches = looked
    try:
        train(network, images(), SETTINGS, freeze="none", validation=images(6), **own)
    finally:
        pipeline.Pipeline._batches = batches
    whole = not any(map(is_dropped, network.parameters()))
    return there, whole, [tuple(p.shape) for p in network.parameters()]


@pytest.fixture(scope="module")
def ranks():
    """What two ranks find, one run after the other."""
    runs = {
        f"{task} {schedule}": training(
            task, schedule=schedule, micro=4, cache_from=1, test=TASKS[task][1](10)
        )
        for task in TASKS
        for schedule in SCHEDULES
    }
    # as many stages to the end, for the budget of parameters is small
    return on_devices(runs | {"budget": training(budget=1e-9, cache_from=1), "asked": _asked})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("task", TASKS)
def test_what_was_calculated_is_what_is_counted(task, schedule, ranks, settings):
    """Every part, every rank, every layout: to the byte."""
    make, data = TASKS[task]
    settings = replace(settings, schedule=schedule, micro=4)
    found = ranks[f"{task} {schedule}"][0]
    close(found, expected(task))
    ours = forecast(make(), data(), settings)
    assert len(found.held) == 2 * settings.epochs
    for epoch, message in enumerate(found.messages):
        layout = message.layout
        for rank in range(2):
            own = found.held[(found.held.epoch == epoch) & (found.held["rank"] == rank)]
            calculated = ours.held(layout)[rank % layout.stages].plain()
            assert own[PARTS].iloc[0].to_dict() == calculated, (epoch, rank)
    assert {m.layout.stages for m in found.messages} == {1, 2}
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


def test_a_rank_lets_go_of_what_is_not_its_own(ranks, settings):
    """Also after an evaluation, for which all ranks have all; at the end all have all again."""
    (first, *whole), (second, *other) = ranks["asked"]
    units = len(make_vit().units)
    assert all(sorted(a + b) == list(range(units)) for a, b in zip(first, second, strict=True))
    assert len(first) == settings.epochs
    assert whole == other == [True, [tuple(p.shape) for p in make_vit().parameters()]]


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (2, 4), (4, 2), (4, 8)])
def test_micro_batches_under_way(kind, stages, micro):
    found = [under_way(kind, stages, micro, stage) for stage in range(stages)]
    if kind == "gpipe":
        assert found == [micro] * stages
    else:
        assert found == [min(micro, stages - stage) for stage in range(stages)]


def test_calculating_leaves_no_trace(settings):
    network = make_vit(0.2)
    network.units.append(torch.nn.BatchNorm1d(3).double())
    network.eval()
    before = {name: t.clone() for name, t in network.state_dict().items()}
    state = torch.get_rng_state()
    foresee(network, images(), replace(settings, devices=2, memory_budget=ANY))
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.training
    assert network.frozen == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_does_not_fit_is_refused_before_the_first_step(ranks, settings):
    options = {"ranks": ranks}
    if ranks == 1:
        options["devices"] = 2
    words = (
        r"stage \d of 2 needs [\d,]+ bytes with 0 frozen layers \(weights [\d,]+, gradients [\d,]+,"
        r" moments [\d,]+, activations [\d,]+\) and memory_budget is 100,000: give more stages"
    )
    network = make_vit()
    with pytest.raises(ValueError, match=words):
        train(network, images(), settings, memory_budget=100_000, **options)
    assert all(
        torch.equal(a, b)
        for a, b in zip(network.parameters(), make_vit().parameters(), strict=True)
    )


def test_the_largest_rank_decides_to_the_byte(settings):
    settings = replace(settings, devices=2, freeze="none")
    layout = foresee(make_vit(), images(), settings).at(0)
    most = max(held.total for held in forecast(make_vit(), images(), settings).held(layout))
    foresee(make_vit(), images(), replace(settings, memory_budget=most))
    with pytest.raises(ValueError, match=f"needs {most:,} bytes"):
        foresee(make_vit(), images(), replace(settings, memory_budget=most - 1))


def test_stages_are_merged_only_where_they_fit(settings):
    """By parameters one frozen layer is enough to take one stage; by bytes two are."""
    rule = {"freeze": "table", "freeze_options": {"counts": [1, 2, 3]}, "budget": 1e9}
    options = {"settings": replace(settings, batch=4, **rule), "devices": 2}
    free = train(make_vit(), images(), **options)
    assert free.history.stages.tolist() == [2, 1, 1, 1]
    all_held = forecast(make_vit(), images(), options["settings"]).held
    none, one, two, _ = (max(h.total for h in all_held(m.layout)) for m in free.messages)
    budget = max(none, two)
    assert budget < one
    tight = train(make_vit(), images(), memory_budget=budget, **options)
    assert tight.history.stages.tolist() == [2, 2, 1, 1]
    close(tight, free)


# ---- what is let go


def test_shapes_stay_and_values_do_not_unless_a_kept_unit_shares_them():
    network = make_vit()
    sizes, optimizer = network.sizes(), Optimizer(network, Recipe())
    network(images().x).sum().backward()
    optimizer.step(1.0)
    keep(network, optimizer, {0, 1})
    assert network.sizes() == sizes
    assert not network.units[5].qkv.weight.isfinite().any()
    kept = sum(p.numel() for unit in network.units[:2] for p in unit.parameters())
    assert optimizer.bytes() == 2 * 8 * kept + 4 * len(list(network.units[:2].parameters()))
    with pytest.raises(RuntimeError, match="written-to tensor"):
        network.units[5].norm.weight.data.copy_(torch.zeros(16))
    with lent(network, range(len(network.units))):
        assert network(images().x).isfinite().all()
    assert all(map(is_dropped, network.units[5].parameters()))
    network = make_vit()
    network.units[8].norm = network.units[1].norm
    optimizer = Optimizer(network, Recipe())
    keep(network, optimizer, {1})
    assert not is_dropped(network.units[8].norm.weight)
    assert is_dropped(network.units[7].norm.weight)


# ---- the notebook's tables


def test_the_table_takes_every_rank_at_its_fullest(ranks):
    record, run = ranks["vit 1f1b"][0].record, results.Run("45_memory_budget")
    study.record(run, {"elastic": record}, Task("made", images(), TEST, TEST, 3), seed=0)
    table = study.table(pd.DataFrame(run.rows))
    assert list(table.index) == [("elastic", 0), ("elastic", 1)]
    for rank, own in record.details.held.groupby("rank"):
        assert table.total["elastic", rank] == own.total.max() / 1e6
    figure = study.picture(table, 10**6)
    assert len(figure.axes[0].patches) == 2 * (len(study.PARTS) - 1)


def test_least_budgets_are_those_that_are_enough(settings):
    task = Task("made", images(), TEST, TEST, 3)
    found = study.least_budgets(make_vit(), task, settings, devices=4, batches=[8, 16])
    assert found.index.tolist() == [1, 2, 4]
    assert (found.diff().dropna() < 0).all(axis=None)  # more stages, fewer bytes
    own = replace(settings, freeze="none", devices=4, stages=2, batch=16)
    enough = round(found.loc[2, 16] * 1e6)
    foresee(make_vit(), images(), replace(own, memory_budget=enough))
    with pytest.raises(ValueError, match="give more stages"):
        foresee(make_vit(), images(), replace(own, memory_budget=enough - 1))
