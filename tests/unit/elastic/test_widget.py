"""The dashboard and what it calculates with."""

from itertools import product

import pytest

from alkit.elastic.freeze import policy
from studies.elastic.layout_widget import ElasticDashboard
from studies.elastic.other_machines import fitted, what_if


def test_the_dashboard_follows_its_controls():
    made = ElasticDashboard(alpha=0.35)
    first, shown = made.gain, made.picture.value
    assert list(made.table.stages)[:3] == [8, 4, 4]
    made.cache.value = False
    assert made.gain < first
    assert made.picture.value != shown
    made.devices.value, made.stages.value = 8, 1
    assert set(made.table.stages) == {1}
    assert "Calculated, not measured" in made.report.value


def test_a_run_on_sixteen_devices():
    constants, log = fitted()
    assert (log.simulated_s <= log.model_s + 1e-9).all()  # no stage is slower than the slowest
    alone = log[log.stages == 1]
    assert list(alone.simulated_s) == pytest.approx(list(alone.model_s))
    assert log.error.abs().max() < 0.061
    assert constants.tau == pytest.approx(5.2e-4, rel=0.05)
    run = what_if(policy("schedule"), constants=constants)
    assert list(run.frozen) == [0, 4, 7, 9, 10, 11, 11, 12, 12, 12]
    assert list(run.stages) == [8, 8, 4, 2, 2, 1, 1, 1, 1, 1]
    assert list(run.replicas) == [2, 2, 4, 8, 8, 16, 16, 16, 16, 16]
    assert list(run.cached) == [False] * 6 + [True, False, True, True]
    assert run.batch.iloc[-1] == 6400
    fixed = what_if(policy("schedule"), growing=False)
    assert set(fixed.batch) == {800}


def test_all_combinations_are_calculated():
    for switches in product([False, True], repeat=3):
        own = dict(zip(("pipe", "dp", "cache"), switches, strict=True))
        run = what_if(policy("schedule"), **own)
        assert (run.samples_per_s > 0).all(), switches
