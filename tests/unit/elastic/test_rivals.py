"""What a sceptic takes instead of elastic training, beside plain loops in double precision."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from alkit import launch
from studies.elastic import rivals
from tests.unit.elastic.helpers import SETTINGS, TASKS, Found, plain, same, warm_cosine

NOTHING_FROZEN = SETTINGS | {"freeze": "none"}
OF_KIND = {"ddp_fewer": {"epochs": 2, "scheduler": warm_cosine(6)}}


def settings_of(kind):
    return NOTHING_FROZEN | OF_KIND.get(kind, {})


def _all_rivals():
    return {
        (kind, task): rivals._on_rank(make(), data(), data(10), data(10), settings_of(kind))
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


@pytest.mark.parametrize("kind", rivals.RIVALS)
@pytest.mark.parametrize("task", TASKS)
def test_what_a_user_would_take_instead_trains_alike(kind, task, rival):
    """Nothing frozen: DDP ends where the plain loop does.

    Also with fewer epochs, at whose end the rate is at its foot.
    """
    make, data = TASKS[task]
    found = rival[kind, task]
    same(found, plain(make(), data(), settings_of(kind)))
    assert len(found.history) == settings_of(kind)["epochs"]
    assert len(found.test_correct) == 10
