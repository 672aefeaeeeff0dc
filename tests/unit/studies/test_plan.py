"""Plans against closed forms."""

import pytest

from alkit.schedule.costs import BlockCost
from studies.plan import METHODS, Network, plan, step_s

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


def test_bands_come_from_several_measurements():
    slower = Network(8, BlockCost(2.0, 3.0, 1.0), BlockCost(2.0, 4.0, 1.0), 8)
    table = plan([NETWORK, NETWORK, slower], [1, 2], FAST)
    row = table[(table.method == "al_pipeline") & (table.devices == 2)].iloc[0]
    assert row.samples_s == row.high == pytest.approx(2 * row.low)
    assert len(table) == 6 * 2


def test_a_method_that_can_t_use_so_many_devices_has_no_row_or_is_refused():
    few = Network(8, AL, BP, samples=4)
    table = plan([few], [4, 8], FAST)
    assert sorted(table[table.devices == 8].method) == sorted(set(METHODS) - {"ddp"})
    assert "ddp" in set(table[table.devices == 4].method)
    with pytest.raises(ValueError, match="unknown method 'bp'"):
        step_s("bp", NETWORK, 2, FAST)
    with pytest.raises(ValueError, match="9 devices for 8 blocks"):
        step_s("1f1b", NETWORK, 9, FAST)
