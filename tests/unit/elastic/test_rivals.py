"""What a sceptic takes instead of elastic training, beside plain loops in double precision."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from alkit import launch
from alkit.engine.ledger import Ledger
from studies.elastic import ablation as study
from studies.elastic import lora, rivals
from studies.elastic.rivals import WithLoss
from studies.elastic.tasks import Task
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    TASKS,
    Found,
    close,
    expected,
    images,
    make_vit,
    plain,
    same,
    train,
)


def in_tail(name: str) -> bool:
    """Whether a tensor belongs to a unit after the layers, which no row ever freezes."""
    return int(name.split(".")[1]) > 2 * LAYERS


def measured(variant, make, data, settings, ranks=1):
    """Return a row of the ablation that is no rival, of devices on this process."""
    task = Task("made", data(), data(10), data(10), 3)
    return Found(study.measured(variant, make(), task, settings, ranks=ranks))


NOTHING_FROZEN = replace(SETTINGS, freeze="none")
OF_KIND = {"ddp_fewer": {"epochs": 2}, "ddp_lora": {"seed": 4}}


def settings_of(kind):
    return replace(NOTHING_FROZEN, **OF_KIND.get(kind, {}))


def _all_rivals():
    return {
        (kind, task): rivals._on_rank(
            kind, make(), data(), data(10), data(10), replace(settings_of(kind), **RANKS)
        )
        for kind in rivals.RIVALS
        for task, (make, data) in TASKS.items()
    }


RANKS = {"devices": 2, "executor": "ranks"}


@pytest.fixture(scope="module")
def rival():
    """What all rivals come to, in one start of two ranks: a record and the weights."""
    return {
        about: Found(replace(record, model=SimpleNamespace(state_dict=lambda own=state: own)))
        for about, (record, state) in launch(_all_rivals, ranks=2)[0].items()
    }


@pytest.mark.parametrize("kind", [kind for kind in rivals.RIVALS if kind != "ddp_lora"])
@pytest.mark.parametrize("task", TASKS)
def test_what_a_user_would_take_instead_trains_alike(kind, task, rival):
    """Nothing frozen: DDP, FSDP and torch's pipeline end where the plain loop does.

    Also with fewer epochs, at whose end the rate is at its foot.
    """
    make, data = TASKS[task]
    found = rival[kind, task]
    same(found, plain(make(), data(), settings_of(kind)))
    assert len(found.history) == settings_of(kind).epochs
    assert len(found.test_correct) == 10


@pytest.mark.parametrize("task", TASKS)
def test_data_parallel_training_holds_it_all(task, rival, settings):
    make, data = TASKS[task]
    whole = sum(p.nbytes for p in make().parameters())
    held = {kind: rival[kind, task].held for kind in ("ddp", "ddp_checkpoint", "ddp_lora")}
    assert all(len(frame) == 2 for frame in held.values())
    ddp = held["ddp"].iloc[0]
    assert (ddp.weights, ddp.gradients, ddp.frozen) == (whole, whole, 0)
    assert ddp.moments == 2 * whole + 4 * len(list(make().parameters()))
    # one stage of ours, as one replica of two, keeps the same for its backward
    half = replace(NOTHING_FROZEN, devices=1, batch=settings.batch // 2)
    assert ddp.activations == train(make(), data(), half).held.activations[0]
    assert held["ddp_checkpoint"].activations[0] < 0.6 * ddp.activations
    lora = held["ddp_lora"].iloc[0]
    assert lora.gradients == lora.weights < whole  # wide updates of a narrow network
    assert 0.9 * whole < lora.frozen < whole
    assert held["ddp"].total.tolist() == [ddp.weights * 2 + ddp.moments + ddp.activations] * 2


@pytest.mark.parametrize(
    ("variant", "task", "devices", "ranks"),
    [
        ("ddp_freeze_cache", "vit", 2, 1),
        ("ddp_freeze_cache", "bert", 2, 1),
        ("one_freeze_cache", "vit", 1, 2),  # one process, whatever the others have
    ],
)
def test_freezing_without_a_pipeline(variant, task, devices, ranks, settings):
    make, data = TASKS[task]
    own = replace(settings, devices=devices)
    found = measured(variant, make, data, own, ranks)
    close(found, expected(task))
    assert set(zip(found.history.stages, found.history.replicas, strict=True)) == {(1, devices)}
    assert found.history.hits.sum() > 0


@pytest.mark.parametrize("task", TASKS)
def test_the_head_alone(task, settings):
    make, data = TASKS[task]
    frozen = make()
    frozen.freeze(LAYERS)
    found = measured("head_cache", make, data, replace(settings, devices=2))
    same(found, plain(frozen, data(), NOTHING_FROZEN))
    assert set(found.history.frozen) == {LAYERS}
    assert found.history.misses.tolist()[1:] == [0] * (settings.epochs - 1)
    begin = make().state_dict()
    changed = {name for name in begin if not torch.equal(begin[name], found.state[name])}
    assert changed == set(filter(in_tail, begin))


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
def test_low_rank_updates_are_all_that_a_row_trains(task, rival):
    make, data = TASKS[task]
    own = adapted(make)
    names = {name for name, p in own.named_parameters() if p.requires_grad}
    assert set(filter(in_tail, names)) == set(filter(in_tail, own.state_dict()))
    assert all(in_tail(name) or name.endswith((".a", ".b")) for name in names)
    linear = 4 if task == "vit" else 6
    assert sum(n.endswith(".a") for n in names) == linear * LAYERS
    trained = plain(own, data(), settings_of("ddp_lora"))
    own.load_state_dict(trained.state)
    lora.merge(own)
    found = rival["ddp_lora", task]
    close(found.state, own.state_dict(), 1e-12)
    assert found.losses.tolist() == pytest.approx(trained.losses, abs=1e-12)
    begin = make().state_dict()
    moved = {name for name in begin if not torch.equal(begin[name], found.state[name])}
    assert {n for n in moved if not in_tail(n)} == {
        f"units.{n}.weight" for n, each in make().units.named_modules()
        if isinstance(each, torch.nn.Linear) and int(n.split(".")[0]) <= 2 * LAYERS
    }  # fmt: skip


def test_a_row_starts_the_ranks_of_a_rival(rival):
    data, network = images(10), make_vit()
    task = Task("made", images(), data, data, 3)
    found = Found(study.measured("ddp_fewer", network, task, settings_of("ddp_fewer")))
    same(found, plain(make_vit(), images(), settings_of("ddp_fewer")))
    close(network.state_dict(), make_vit().state_dict())  # the network here is left as it was


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
