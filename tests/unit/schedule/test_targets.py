"""Target propagation as a schedule: loops side by side, targets one after the other."""

import pytest

from alkit.schedule.clock import simulate
from alkit.schedule.targets import target_propagation
from alkit.schedule.validate import validate

SECONDS = {"forward": 1.0, "learn": 20.0, "target": 2.0, "backward": 3.0, "update": 0.5}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_it_is_a_schedule_without_stale_weights(blocks, direct):
    report = validate(target_propagation(blocks, direct=direct))
    assert report.staleness == (0,) * blocks


@pytest.mark.parametrize(("direct", "targets"), [(False, 5), (True, 1)])
def test_loops_of_all_blocks_run_at_once_and_targets_descend(direct, targets):
    made = target_propagation(5, direct=direct)
    found = simulate(made, lambda task: SECONDS[task.kind], 1)
    # all forwards, the loops at once, then targets one after the other, or each by its own map
    assert found.span_s == pytest.approx(5 * 1 + 20 + targets * 2 + 3 + 0.5)
    loops = [i for i in found.intervals if i.kind == "learn"]
    assert len(loops) == 4  # the lowest block has no feedback to learn
    assert max(i.start_s for i in loops) < min(i.end_s for i in loops)
