"""The engine's own share of a step."""

import pytest

from alkit.engine import watch as engine
from alkit.engine.local import Run as Board
from studies.common import engine_overhead as module
from studies.common.engine_overhead import overhead, run
from tests.helpers import Clock


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
