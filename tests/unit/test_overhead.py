"""The engine's own share of a step: a share, and larger if the engine dawdles."""

import time

import pytest

from alkit import engine
from studies.overhead import overhead, run


def test_tasks_take_about_what_was_asked_for():
    timeline = run(block_ms=4.0, workers=1, batches=8)
    assert len(timeline.batch_ends_s) == 8
    forward_s, backward_s = (timeline.task_s()[kind, 0] for kind in ("forward", "backward"))
    assert 0 < forward_s < backward_s < 0.1


def test_a_pause_between_tasks_is_overhead(monkeypatch):
    board = engine._Board
    perform = board.perform

    def dawdle(self, task, worker):
        time.sleep(0.01)
        return perform(self, task, worker)

    monkeypatch.setattr(board, "perform", dawdle)
    assert 0.5 < overhead(block_ms=1.0, workers=1, batches=8) < 1


def test_what_can_t_be_measured():
    with pytest.raises(ValueError, match="both must be positive"):
        overhead(0, workers=1)
