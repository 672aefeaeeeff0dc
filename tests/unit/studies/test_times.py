"""Models of time: plans against closed forms, the published scale study, the engine's own share."""

import pandas as pd
import pytest

from alkit.engine import watch as engine
from alkit.engine.local import Run as Board
from alkit.schedule.costs import BlockCost
from studies.al import published_scale
from studies.al.many_devices import METHODS, Network, plan, step_s
from studies.al.published_scale import Machine
from studies.common import engine_overhead as module
from studies.common.engine_overhead import overhead, run
from tests.helpers import Clock

AL = BlockCost(1.0, 1.5, 0.5, output_bytes=100, parameter_bytes=1000)
BP = BlockCost(1.0, 2.0, 0.5, output_bytes=100, parameter_bytes=1000)
NETWORK = Network(8, AL, BP, samples=8)
FAST = 1e12  # bytes a second: links take no time


def test_steps_are_their_closed_forms():
    for method, block_s in (("al_pipeline", 3.0), ("al_fm", 3.0), ("1f1b", 3.5), ("ddp", 3.5)):
        assert step_s(method, NETWORK, 1, FAST) == pytest.approx(8 * block_s)
    for devices in (2, 4, 8):  # the pipeline divides its work by the devices
        assert step_s("al_pipeline", NETWORK, devices, FAST) == pytest.approx(8 * 3.0 / devices)
    # m micro-batches on K equal stages: (m + K - 1) / m of a device's share, then the update
    expected = (8 + 4 - 1) / 8 * (8 / 4) * 3.0 + (8 / 4) * 0.5
    assert step_s("gpipe", NETWORK, 4, FAST) == pytest.approx(expected)
    assert step_s("1f1b", NETWORK, 4, FAST) == pytest.approx(expected)
    assert step_s("zero_bubble", NETWORK, 4, FAST) < expected
    # AL FM never takes less than its forwards
    assert step_s("al_fm", NETWORK, 8, FAST) == pytest.approx(8 * 1.0 + 2.0)
    slow = 1e3  # data parallel training divides the batch, but not the update
    expected = 8 * (3.0 / 4 + 0.5) + 2 * 3 / 4 * 8 * 1000 / slow
    assert step_s("ddp", NETWORK, 4, slow) == pytest.approx(expected)
    # a slow link sets the pace
    assert step_s("al_pipeline", NETWORK, 8, 10.0) == pytest.approx(10.0)


def test_bands_come_from_several_measurements_and_too_many_devices_have_no_row():
    slower = Network(8, BlockCost(2.0, 3.0, 1.0), BlockCost(2.0, 4.0, 1.0), 8)
    table = plan([NETWORK, NETWORK, slower], [1, 2], FAST)
    row = table[(table.method == "al_pipeline") & (table.devices == 2)].iloc[0]
    assert row.samples_s == row.high == pytest.approx(2 * row.low)
    table = plan([Network(8, AL, BP, samples=4)], [4, 8], FAST)
    assert sorted(table[table.devices == 8].method) == sorted(set(METHODS) - {"ddp"})
    assert "ddp" in set(table[table.devices == 4].method)
    with pytest.raises(ValueError, match="9 devices for 8 blocks"):
        step_s("1f1b", NETWORK, 9, FAST)


MACHINE = Machine(2.0, 5.0, 4.0, 0.9, 0.05, 1.5)
EMBEDDING = 2.0 + 4.0 * published_scale.TENSORS


def test_steps_are_sums_and_more_devices_hide_something():
    block = 2.0 + (5.0 + 2.0) + 4.0
    one = published_scale.step_ms(MACHINE, "bp", "contiguous", 1, 3)
    assert one == pytest.approx(EMBEDDING + 3 * block)
    spread = published_scale.step_ms(MACHINE, "bp", "round_robin", 3, 3)
    assert spread == pytest.approx(one + 2 * 1.5)  # hops delay the forwards
    expected = EMBEDDING + 4 * (2.0 + 5.0 + 4.0)
    assert published_scale.step_ms(MACHINE, "al_fm", "round_robin", 1, 4) == pytest.approx(expected)
    one, two = (
        published_scale.step_ms(MACHINE, "al_fm", "round_robin", gpus, 4) for gpus in (1, 2)
    )
    assert two < one


def test_constants_come_back():
    cases = [("bp", "round_robin", 2, 2), ("bp", "contiguous", 1, 3), ("bp", "contiguous", 1, 1)]
    cases += [("al_fm", "round_robin", g, n) for g, n in ((1, 2), (2, 2), (2, 4), (3, 3))]
    rows = pd.DataFrame(cases, columns=["method", "placement", "gpus", "layers"])
    rows["ms"] = [published_scale.step_ms(MACHINE, *case) for case in cases]
    found = published_scale.predictions(published_scale.fit(rows), rows)
    assert found.error.abs().max() < 0.01
    assert found.fitted.sum() == 3  # (2, 2) twice and (1, 1)


@pytest.fixture
def clock(monkeypatch):
    """A machine on which a row of a product takes a microsecond, and all else no time."""
    clock, multiply = Clock(), module.torch.mm

    def product(left, right, *, out):
        clock.sleep(1e-6 * len(left))
        return multiply(left, right, out=out)

    monkeypatch.setattr(module.torch, "mm", product)
    for each in (engine, module):
        monkeypatch.setattr(each, "time", clock)
    return clock


def test_tasks_take_what_was_asked_for(clock):
    timeline = run(block_ms=4.0, workers=1, batches=8)
    assert len(timeline.batch_ends_s) == 8
    shares = {"forward": 1.2e-3, "backward": 2.4e-3, "update": 0.4e-3}
    assert timeline.task_s() == pytest.approx({(kind, 0): s for kind, s in shares.items()})


def test_a_pause_between_tasks_is_overhead(clock, monkeypatch):
    assert overhead(block_ms=4.0, workers=1, batches=8) == pytest.approx(0)
    perform = Board.perform

    def dawdle(self, task, worker):
        clock.sleep(2e-3)
        return perform(self, task, worker)

    monkeypatch.setattr(Board, "perform", dawdle)
    # six batches are measured: 18 tasks and the 17 pauses between them
    share = 17 * 2 / (17 * 2 + 6 * 4)
    assert overhead(block_ms=4.0, workers=1, batches=8) == pytest.approx(share)


def test_of_several_workers_too():
    """On the real clock, which says nothing sure but this."""
    assert 0 < overhead(block_ms=1.0, workers=2, batches=8) < 1
    with pytest.raises(ValueError, match="both must be positive"):
        overhead(0, workers=1)
