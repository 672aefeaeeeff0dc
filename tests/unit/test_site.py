"""The site's page of schedules, which takes the simulator's times."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

from alkit.schedule.clock import simulate

ROOT = Path(__file__).resolve().parents[2]


sys.path.append(str(ROOT / ".site"))
schedules = importlib.import_module("schedules")


@pytest.mark.parametrize("costs", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.3), (0.37, 0.11, 1.9)])
def test_the_longest_path_is_the_clocks_time(costs):
    """What the page's script does, done here: for all sizes and methods the clock's ends."""
    for layers in range(1, schedules.MOST + 1):
        for workers in range(1, layers + 1, 3):
            for name, schedule in schedules.schedules(layers, workers).items():
                own = schedules.graph(name, schedule)
                cost = partial(schedules.cost, own, costs=costs)
                truth = simulate(schedule, lambda t, c=cost: c(t.kind, t.stage), schedules.BATCHES)
                ends, free = [], {}
                for worker, kind, layer, _, *waits in own["tasks"]:
                    start = max([free.get(worker, 0.0), *(ends[at] for at in waits)])
                    ends.append(start + cost(schedules.KINDS[kind], layer))
                    free[worker] = ends[-1]
                assert len(ends) == len(truth.intervals)
                expected = sorted(each.end_s for each in truth.intervals)
                assert sorted(ends) == pytest.approx(expected, abs=1e-9)
