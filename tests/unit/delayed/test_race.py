"""What the race is made of: costs on ranks, predictions, and the stack that everybody trains."""

import pytest
import torch

from alkit.costs import BlockCost
from alkit.delayed import race
from alkit.stacks import Stack

SMALL = Stack(kind="resnet20", layers=10, width=2, texts=4, batches=4)
COSTS = race.Costs(
    [BlockCost(1.0, 2.0, 0.0, 100, 0, 0)] * 4, [BlockCost(2.0, 4.0, 0.0, 100, 0, 0)] * 4, 1e9
)


@pytest.mark.parametrize(
    ("method", "seconds"),
    [("seq", 12), ("ddg_barrier", 4 + 8), ("fr_barrier", 4 + 8 + 4), ("pipedream", 12)],
)
def test_predictions_take_costs_alone_or_busy(method, seconds):
    """Two modules of two blocks: 2 and 4 seconds alone, 4 and 8 beside a busy neighbour."""
    spans = [race.predicted(method, COSTS, [2], count, links=False).span_s for count in (20, 30)]
    assert (spans[1] - spans[0]) / 10 == pytest.approx(seconds)


def test_links_take_time():
    slow = race.Costs(COSTS.alone, COSTS.busy, 100.0)
    assert race.predicted("seq", slow, [2], 12).steady_s == pytest.approx(12 + 2)


def test_ranks_train_what_one_process_does():
    record = race.on_ranks(SMALL, "fr_barrier", [5])
    assert torch.isfinite(record.losses).all()
    assert record.timeline.resources == ("worker 0", "worker 1")
    assert record.pipeline is None


def test_costs_are_measured():
    found = race.measure(SMALL)
    assert len(found.alone) == len(found.busy) == 11
    assert found.bytes_s > 1e6


def test_contenders(monkeypatch):
    monkeypatch.setattr(race, "fastest_micro", lambda *given: 2)
    made = race.contenders(
        SMALL, ["seq", "pipedream"], {m: [5] for m in ("seq", "pipedream", "1f1b")}
    )
    assert list(made) == ["seq", "pipedream", "1f1b"]
    assert made["1f1b"].args[2] == 2
