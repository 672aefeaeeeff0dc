"""What a rank holds: its own stage alone, as much as was reckoned, and no more than its budget."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from alkit import launch
from alkit.elastic import Recipe
from alkit.elastic.decider import foresee
from alkit.elastic.memory import Reckoner, under_way
from alkit.elastic.optim import Optimizer
from alkit.elastic.sync import is_dropped, keep, lent
from alkit.records import results
from studies.elastic import memory as study
from studies.elastic.rivals import rival
from studies.elastic.tasks import Task
from tests.unit.elastic.helpers import TASKS, close, images, make_vit, plain, train

PARTS = ["weights", "frozen", "gradients", "moments", "activations", "message", "total"]
ANY = 10**12


def reckoner(network, data, settings, budget=ANY):
    about = {"schedule": settings.schedule, "precision": settings.precision, "budget": budget}
    return Reckoner(network, data, settings.recipe, **about)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("task", TASKS)
def test_what_was_reckoned_is_what_is_counted(task, schedule, settings):
    """Every part, every rank, every layout: to the byte."""
    make, data = TASKS[task]
    settings = replace(settings, schedule=schedule, micro=4)
    found = train(make(), data(), settings, ranks=2, cache_from=1)
    expected = reckoner(make(), data(), settings)
    assert len(found.held) == 2 * settings.epochs
    for epoch, message in enumerate(found.messages):
        layout = message.layout
        for rank in range(2):
            own = found.held[(found.held.epoch == epoch) & (found.held["rank"] == rank)]
            reckoned = expected.held(layout)[rank % layout.stages].plain()
            assert own[PARTS].iloc[0].to_dict() == reckoned, (epoch, rank)
    assert {m.layout.stages for m in found.messages} == {1, 2}
    whole = sum(p.nbytes for p in make().parameters())
    first = found.held[found.held.epoch == 0]
    assert first.weights.sum() == whole
    assert first.weights.max() < 0.7 * whole


def test_four_ranks_share_a_network_out(settings):
    settings = replace(settings, freeze="none", recipe=Recipe("sgd", lr=0.05, momentum=0.9))
    found = train(make_vit(), images(), settings, ranks=4)
    close(found.state, plain(make_vit(), images(), settings).state, 1e-12)
    expected = reckoner(make_vit(), images(), settings).held(found.messages[0].layout)
    for rank, held in enumerate(expected):
        assert found.held[PARTS].iloc[rank].to_dict() == held.plain()
    assert found.held.moments.sum() == found.held.weights.sum()


def test_frozen_layers_lie_on_first_stages_alone(settings):
    """As many stages to the end, for the budget of parameters is small."""
    options = {"settings": settings, "ranks": 2, "budget": 1e-9}
    found = train(make_vit(), images(), cache_from=1, **options)
    close(found.state, plain(make_vit(), images(), settings).state, 1e-12)
    assert set(found.history.stages) == {2}
    last = found.held[found.held.epoch == 3].set_index("rank")
    assert last.frozen[0] > 0
    assert last.frozen[1] == 0


def _asks(settings):
    """Return how many units of a rank's network are there, at every step's order."""
    from alkit.elastic import pipeline

    network, there = make_vit(), []
    batches = pipeline.Pipeline._batches

    def looked(self, segment):
        units = network.units
        there.append([n for n, u in enumerate(units) if not any(map(is_dropped, u.parameters()))])
        return batches(self, segment)

    pipeline.Pipeline._batches = looked
    train(network, images(), settings, validation=images(6))
    whole = not any(map(is_dropped, network.parameters()))
    return there, whole, [tuple(p.shape) for p in network.parameters()]


def test_a_rank_lets_go_of_what_is_not_its_own(settings):
    """Also after an evaluation, for which all ranks have all; at the end all have all again."""
    settings = replace(settings, devices=2, executor="ranks", freeze="none")
    (first, whole, shapes), (second, other, _) = launch(_asks, settings, ranks=2)
    units = len(make_vit().units)
    assert all(sorted(a + b) == list(range(units)) for a, b in zip(first, second, strict=True))
    assert len(first) == settings.epochs
    assert whole
    assert other
    assert shapes == [tuple(p.shape) for p in make_vit().parameters()]


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (2, 4), (4, 2), (4, 8)])
def test_micro_batches_under_way(kind, stages, micro):
    found = [under_way(kind, stages, micro, stage) for stage in range(stages)]
    if kind == "gpipe":
        assert found == [micro] * stages
    else:
        assert found == [min(micro, stages - stage) for stage in range(stages)]


def test_reckoning_leaves_no_trace(settings):
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
    most = max(held.total for held in reckoner(make_vit(), images(), settings).held(layout))
    foresee(make_vit(), images(), replace(settings, memory_budget=most))
    with pytest.raises(ValueError, match=f"needs {most:,} bytes"):
        foresee(make_vit(), images(), replace(settings, memory_budget=most - 1))


def test_stages_are_merged_only_where_they_fit(settings):
    """By parameters one frozen layer is enough to take one stage; by bytes two are."""
    rule = {"freeze": "table", "freeze_options": {"counts": [1, 2, 3]}, "budget": 1e9}
    options = {"settings": replace(settings, batch=4, **rule), "devices": 2}
    free = train(make_vit(), images(), **options)
    assert free.history.stages.tolist() == [2, 1, 1, 1]
    all_held = reckoner(make_vit(), images(), options["settings"]).held
    none, one, two, _ = (max(h.total for h in all_held(m.layout)) for m in free.messages)
    budget = max(none, two)
    assert budget < one
    tight = train(make_vit(), images(), memory_budget=budget, **options)
    assert tight.history.stages.tolist() == [2, 2, 1, 1]
    close(tight, free)


@pytest.mark.parametrize("task", TASKS)
def test_data_parallel_training_holds_it_all(task, settings):
    make, data = TASKS[task]
    settings = replace(settings, freeze="none", epochs=1)
    whole = sum(p.nbytes for p in make().parameters())
    held = {}
    for kind in ("ddp", "ddp_checkpoint", "ddp_lora"):
        held[kind] = rival(kind, make(), data(), settings=settings).details.held
        assert len(held[kind]) == 2
    ddp = held["ddp"].iloc[0]
    assert (ddp.weights, ddp.gradients, ddp.frozen) == (whole, whole, 0)
    assert ddp.moments == 2 * whole + 4 * len(list(make().parameters()))
    # one stage of ours, as one replica of two, keeps the same for its backward
    layout = foresee(make(), data(), replace(settings, devices=2, stages=1)).at(0)
    assert ddp.activations == reckoner(make(), data(), settings).held(layout)[0].activations
    assert held["ddp_checkpoint"].activations[0] < 0.6 * ddp.activations
    lora = held["ddp_lora"].iloc[0]
    assert lora.gradients == lora.weights < whole  # wide updates of a narrow network
    assert 0.9 * whole < lora.frozen < whole
    frame = held["ddp"]
    assert frame.total.tolist() == [ddp.weights * 2 + ddp.moments + ddp.activations] * 2


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


def test_the_table_takes_every_rank_at_its_fullest(settings):
    task = Task("made", images(), images(10), images(10), 3)
    record = train(make_vit(), images(), test=images(10), settings=settings, ranks=2)
    run = results.Run("45_memory_budget")
    study.record(run, {"elastic": record}, task, seed=0)
    table = study.table(pd.DataFrame(run.rows))
    assert list(table.index) == [("elastic", 0), ("elastic", 1)]
    for rank, own in record.held.groupby("rank"):
        assert table.total["elastic", rank] == own.total.max() / 1e6
    figure = study.picture(table, 10**6)
    assert len(figure.axes[0].patches) == 2 * (len(study.PARTS) - 1)


def test_least_budgets_are_those_that_are_enough(settings):
    task = Task("made", images(), images(10), images(10), 3)
    found = study.least_budgets(make_vit(), task, settings, devices=4, batches=[8, 16])
    assert found.index.tolist() == [1, 2, 4]
    assert (found.diff().dropna() < 0).all(axis=None)  # more stages, fewer bytes
    own = replace(settings, freeze="none", devices=4, stages=2, batch=16)
    enough = round(found.loc[2, 16] * 1e6)
    foresee(make_vit(), images(), replace(own, memory_budget=enough))
    with pytest.raises(ValueError, match="give more stages"):
        foresee(make_vit(), images(), replace(own, memory_budget=enough - 1))
