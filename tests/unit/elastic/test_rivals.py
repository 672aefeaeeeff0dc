"""What a sceptic takes instead of elastic training, beside plain loops in double precision."""

import copy
from dataclasses import replace

import pandas as pd
import pytest
import torch

from alkit.engine.ledger import Ledger
from studies.elastic import ablation as study
from studies.elastic import lora
from studies.elastic.rivals import WithLoss
from studies.elastic.tasks import Task
from tests.unit.elastic.helpers import LAYERS, TASKS, Found, close, images, make_vit, plain, same


def in_tail(name: str) -> bool:
    """Whether a tensor belongs to a unit after the layers, which no row ever freezes."""
    return int(name.split(".")[1]) > 2 * LAYERS


def measured(variant, make, data, settings):
    task = Task("made", data(), data(10), data(10), 3)
    return Found(study.measured(variant, make(), task, settings))


@pytest.mark.parametrize(
    ("variant", "task", "layout"),
    [
        ("ddp_freeze_cache", "vit", (1, 2)),
        ("ddp_freeze_cache", "bert", (1, 2)),
        ("one_freeze_cache", "vit", (1, 1)),
    ],
)
def test_freezing_without_a_pipeline(variant, layout, task, settings):
    make, data = TASKS[task]
    found = measured(variant, make, data, replace(settings, cache_from=1))
    close(found, plain(make(), data(), settings))
    assert set(zip(found.history.stages, found.history.replicas, strict=True)) == {layout}
    assert found.history.hits.sum() > 0


@pytest.mark.parametrize("task", TASKS)
def test_the_head_alone(task, settings):
    make, data = TASKS[task]
    expected = make()
    expected.freeze(LAYERS)
    expected = plain(expected, data(), replace(settings, freeze="none"))
    found = measured("head_cache", make, data, replace(settings, cache_from=1))
    same(found, expected)
    assert set(found.history.frozen) == {LAYERS}
    assert found.history.misses.tolist()[1:] == [0] * (settings.epochs - 1)
    begin = make().state_dict()
    changed = {name for name in begin if not torch.equal(begin[name], found.state[name])}
    assert changed == set(filter(in_tail, begin))


def test_fewer_epochs_end_with_the_rate_at_its_foot(settings):
    settings = replace(settings, epochs=2)
    found = measured("ddp_fewer", make_vit, images, settings)
    expected = plain(make_vit(), images(), replace(settings, freeze="none"))
    close(found, expected)
    assert len(found.history) == 2


@pytest.mark.parametrize("task", TASKS)
def test_checkpoints_keep_a_layers_input_and_change_no_gradient(task):
    make, data = TASKS[task]
    both = []
    for checkpoints in (False, True):
        model = WithLoss(make(0.3), checkpoints=checkpoints)  # noise is drawn again, the same
        ledger = Ledger(model)
        with ledger.recording():
            loss = model(data().x, data().y)
        kept = ledger.now
        loss.backward()
        both.append(([p.grad for p in model.parameters()], kept))
    assert all(torch.equal(a, b) for a, b in zip(both[0][0], both[1][0], strict=True))
    assert both[1][1] < both[0][1] / 3


def adapted(make):
    network = make()
    lora.adapt(network, seed=4)
    return network


@pytest.mark.parametrize("task", TASKS)
def test_low_rank_updates_begin_at_the_base_and_merge(task):
    make, data = TASKS[task]
    network, x = adapted(make), data().x
    assert torch.equal(network.predict(x), make().predict(x))
    with torch.no_grad():
        for each in network.modules():
            if isinstance(each, lora.LowRank):
                each.b.normal_()
    changed = network.predict(x)
    assert not torch.allclose(changed, make().predict(x))
    lora.merge(network)
    torch.testing.assert_close(network.predict(x), changed, rtol=0, atol=1e-12)
    assert network.state_dict().keys() == make().state_dict().keys()


@pytest.mark.parametrize("task", TASKS)
def test_low_rank_updates_are_all_that_a_row_trains(task, settings):
    make, data = TASKS[task]
    own = adapted(make)
    names = {name for name, p in own.named_parameters() if p.requires_grad}
    assert set(filter(in_tail, names)) == set(filter(in_tail, own.state_dict()))
    assert all(in_tail(name) or name.endswith((".a", ".b")) for name in names)
    linear = 4 if task == "vit" else 6
    assert sum(n.endswith(".a") for n in names) == linear * LAYERS
    settings = replace(settings, freeze="none", seed=4)
    trained = plain(own, data(), settings)
    own.load_state_dict(trained.state)
    lora.merge(own)
    found = measured("ddp_lora", make, data, settings)
    close(found.state, own.state_dict(), 1e-12)
    assert found.losses.tolist() == pytest.approx(trained.losses, abs=1e-12)
    begin = make().state_dict()
    moved = {name for name in begin if not torch.equal(begin[name], found.state[name])}
    assert {n for n in moved if not in_tail(n)} == {
        f"units.{n}.weight" for n, each in make().units.named_modules()
        if isinstance(each, torch.nn.Linear) and int(n.split(".")[0]) <= 2 * LAYERS
    }  # fmt: skip


def test_the_same_low_rank_updates_for_a_seed():
    first, second, other = (make_vit() for _ in range(3))
    for network, seed in ((first, 1), (second, 1), (other, 2)):
        lora.adapt(network, seed=seed)
    name = "units.1.qkv.a"
    assert torch.equal(first.get_parameter(name), second.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))
    assert copy.deepcopy(first).get_parameter(name).shape == (lora.RANK, 16)


def rows(**seconds: float) -> pd.DataFrame:
    """Return records of one data set, two seeds: the second one is twice as slow."""
    found = []
    for seed, slow in ((0, 1.0), (1, 2.0)):
        for method, value in seconds.items():
            own = {"data": "d", "method": method, "alpha": 1 / 3, "seed": seed}
            values = {"seconds": slow * value, "accuracy": 50.0, "val_acc": 50.0}
            values |= {"epoch_s": [slow * value / 10] * 10}
            found += [own | {"metric": name, "value": each} for name, each in values.items()]
    return pd.DataFrame(found)


def test_tables_lead_with_data_parallel_training_where_there_is_any():
    table = study.ablation(rows(**{"1f1b": 40.0, "elastic": 8.0, "ddp": 20.0}))
    assert table.columns[0] == "against ddp"
    assert table.loc["d"]["against ddp"].to_dict() == {"1f1b": 0.5, "elastic": 2.5, "ddp": 1.0}
    assert table.loc["d"]["times as fast"].to_dict() == {"1f1b": 1.0, "elastic": 5.0, "ddp": 2.0}
    shown = study.readable(table).columns.tolist()
    assert shown[2:4] == ["against data parallel", "against the pipeline"]
    # As of a smoke run that asks for other rows.
    table = study.ablation(rows(elastic=8.0))
    assert table["against ddp"].isna().all()
    assert study.readable(table)["against data parallel"].tolist() == [""]
    assert study.fitting_epochs(rows(elastic=8.0)).empty
    assert study.fitting_epochs(rows(elastic=8.0, ddp=20.0)).to_dict() == {"d": 4}
