"""Shared interpreters and devices against sums done by hand."""

import pytest

from alkit.schedule.clock import simulate
from alkit.schedule.task import al, al_fm, al_pipeline, block_by_block
from studies.al.one_process import ALL_KINDS, Sharing, by_device, one_process

SECONDS = {"forward": 1.0, "backward": 3.0, "update": 2.0}


def seconds(task):
    return SECONDS[task.kind]


def on_devices(schedule, placement, seconds, batches, **machine):
    return simulate(schedule, seconds, batches, machine=one_process(schedule, placement, **machine))


@pytest.mark.parametrize("schedule", [al(3), block_by_block(3)])
def test_one_worker_takes_the_sum_of_its_tasks(schedule):
    timeline = on_devices(schedule, [0, 1, 2], seconds, 2, sharing=Sharing(3.0, 1.0))
    assert timeline.span_s == pytest.approx(2 * 3 * 6)
    # on one device al_fm hides nothing
    assert on_devices(al_fm(4), [0] * 4, seconds, 1).span_s == pytest.approx(4 * 6)


def test_a_device_a_layer_and_an_interpreter_that_is_never_shared():
    """F0 at 0..1, F1 at 1..2; B0 ends at 4, U0 at 6; B1 ends at 5, and U1 shares 5..6 with U0."""
    ends = {(i.kind, i.stage): i.end_s for i in on_devices(al_fm(2), [0, 1], seconds, 1).intervals}
    assert ends["forward", 1] == 2.0
    assert (ends["backward", 0], ends["backward", 1]) == (4.0, 5.0)
    # U0 alone 4..5, then both at half speed: U0's last second takes two, U1's other one is alone
    assert ends["update", 0] == pytest.approx(7.0)
    assert ends["update", 1] == pytest.approx(8.0)


def test_sharing_costs():
    free, dear = (
        on_devices(al_fm(2), [0, 1], seconds, 1, sharing=sharing).span_s
        for sharing in (Sharing(), Sharing(2.0, 0.25))
    )
    # two seconds of the interpreter's work are done while it is shared, at 1 / 2.5 of its speed
    assert dear - free == pytest.approx(2.0 * 1.5)
    assert Sharing(2.0, 0.25).pace(1, 8) == 1.0
    assert Sharing(2.0, 0.25).pace(3, 8) == pytest.approx(1 / 4 / 3)


def test_a_forward_waits_for_its_device():
    """Round robin on two devices: F2 starts when device 0 has done with U0."""
    timeline = on_devices(al_fm(3), [0, 1, 0], seconds, 1)
    starts = {(i.kind, i.stage): i.start_s for i in timeline.intervals}
    ends = {(i.kind, i.stage): i.end_s for i in timeline.intervals}
    assert starts["forward", 2] == ends["update", 0]


def test_backwards_stand_in_a_queue():
    timeline = on_devices(block_by_block(2), [0, 0], seconds, 1)
    assert timeline.span_s == pytest.approx(12)
    pipeline = on_devices(al_pipeline(2), [0, 0], seconds, 3)
    backwards = sorted((i.start_s, i.end_s) for i in pipeline.intervals if i.kind == "backward")
    assert all(a[1] <= b[0] for a, b in zip(backwards, backwards[1:], strict=False))


def test_with_all_tasks_on_devices_the_interpreter_is_free():
    """The pipeline's closed form: a step takes what its fullest device has to do."""
    timeline = on_devices(al_pipeline(4), [0, 1, 0, 1], seconds, 20, on_device=ALL_KINDS)
    assert timeline.steady_s == pytest.approx(2 * 6.0)
    rows = by_device(timeline, [0, 1, 0, 1])
    assert rows.resources == ("device 0", "device 1")
    for name in rows.resources:
        own = [i for i in rows.intervals if i.resource == name]
        assert all(a.end_s <= b.start_s for a, b in zip(own, own[1:], strict=False))


def test_free_resources_agree_with_cores():
    costs = {"forward": 0.0, "backward": 3.0, "update": 0.0}
    for schedule in (al(3), al_fm(3), al_pipeline(3)):
        ours = on_devices(schedule, [0, 1, 2], lambda task: costs[task.kind], 5)
        plain = simulate(schedule, lambda task: costs[task.kind], 5)
        assert ours.span_s == pytest.approx(plain.span_s)
