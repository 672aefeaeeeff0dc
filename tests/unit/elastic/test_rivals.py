"""What a sceptic takes instead of elastic training, beside plain loops in double precision."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from alkit import launch
from studies.elastic import lora, rivals
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    TASKS,
    Found,
    close,
    plain,
    same,
    warm_cosine,
)


def in_tail(name: str) -> bool:
    """Whether a tensor belongs to a unit after the layers, which no row ever freezes."""
    return int(name.split(".")[1]) > 2 * LAYERS


NOTHING_FROZEN = SETTINGS | {"freeze": "none"}
OF_KIND = {"ddp_fewer": {"epochs": 2, "scheduler": warm_cosine(6)}, "ddp_lora": {"seed": 4}}


def settings_of(kind):
    return NOTHING_FROZEN | OF_KIND.get(kind, {})


def _all_rivals():
    return {
        (kind, task): rivals._on_rank(kind, make(), data(), data(10), data(10), settings_of(kind))
        for kind in rivals.RIVALS
        for task, (make, data) in TASKS.items()
    }


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
    assert len(found.history) == settings_of(kind)["epochs"]
    assert len(found.test_correct) == 10


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
