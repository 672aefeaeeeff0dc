"""What the race is made of: costs on ranks, predictions, and the stack that everybody trains."""

import pytest
import torch

from alkit.engine.launch import launch
from studies.common import contenders
from studies.common.stacks import Stack
from studies.delayed import times_on_ranks

SMALL = Stack(kind="resnet20", layers=10, width=2, texts=4, batches=12)
SECONDS = {
    (kind, stage): seconds
    for stage in range(2)
    for kind, seconds in (("forward", 1.0), ("backward", 2.0), ("update", 0.0))
}


@pytest.mark.parametrize(
    ("method", "alone", "slowed"),
    [
        ("seq", 6, 6),  # never beside another
        ("pipedream", 3, 4.5),
        ("ddg_barrier", 2 + 2, 2 + 3),  # backwards beside each other
        ("fr_barrier", 2 + 3, 2 + 3 + 1),  # one of them is a forward longer
    ],
)
def test_tasks_slow_down_beside_each_other(method, alone, slowed):
    for slowdown, seconds in ((1.0, alone), (1.5, slowed)):
        costs = times_on_ranks.Costs(SECONDS, slowdown)
        spans = [times_on_ranks.predicted(method, costs, count).span_s for count in (20, 30)]
        assert (spans[1] - spans[0]) / 10 == pytest.approx(seconds)


def test_the_bound():
    assert times_on_ranks.Costs(SECONDS, 1.0).bound == 2.0
    uneven = {**SECONDS, ("backward", 0): 5.0}
    assert times_on_ranks.Costs(uneven, 1.2).bound == pytest.approx(9 / 6)


def test_costs_of_two_runs():
    alone, beside = (
        times_on_ranks.predicted(m, times_on_ranks.Costs(SECONDS, 1.5), 20)
        for m in ("seq", "pipedream")
    )
    costs = times_on_ranks.costs_of(alone, beside)
    assert costs.seconds == pytest.approx(SECONDS)
    assert costs.slowdown == pytest.approx(1.5)


def test_contenders(monkeypatch):
    monkeypatch.setattr(times_on_ranks, "fastest_micro", lambda *given: 2)
    made = times_on_ranks.contenders(SMALL, ["seq", "pipedream"], [5])
    assert list(made) == ["seq", "pipedream", "1f1b"]
    assert made["1f1b"].keywords["micro"] == 2


def _measured():
    """Measure on ranks that have started already: a start for each would take seconds."""
    times_on_ranks.launch = contenders.launch = lambda call, *given, ranks: [call(*given)] * ranks
    records = [times_on_ranks.on_ranks(SMALL, method, [5]) for method in ("seq", "pipedream")]
    return records, contenders.costs_on_ranks(SMALL, 2, "bp")


def test_costs_are_measured():
    records, blocks = launch(_measured, ranks=2)[0]
    assert torch.isfinite(records[1].losses).all()
    assert records[1].timeline.resources == ("worker 0", "worker 1")
    assert records[1].pipeline is None
    costs = times_on_ranks.costs_of(*(record.timeline for record in records))
    assert len(costs.seconds) == 6
    assert costs.slowdown >= 1
    assert 0 < costs.bound <= 2
    assert len(blocks) == 11
