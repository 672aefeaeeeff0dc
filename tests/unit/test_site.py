"""The site's page of schedules, which takes the simulator's times."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

import alkit
from alkit.delayed.methods import METHODS as DELAYED
from alkit.delayed.schedules import schedule_for
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


TWINS = {"local": "al", "local_pipeline": "al_pipeline", "elastic": "1f1b"}
TWINS |= {"ddg_inplace": "ddg", "seq": "bp_cut"}
TWINS |= dict.fromkeys(("pipedream_inplace", "pipedream_sync"), "pipedream")


def test_the_page_draws_every_schedule_of_training_on_workers():
    """All methods but those whose tasks are others: targets, split learning; twins count once."""
    drawn = {name for pairs in schedules.graphs().values() for name in pairs}
    asked = {name for name, each in alkit.METHODS.items() if each.family not in ("split", "dtp")}
    assert {TWINS.get(name, name) for name in asked} | {"bp_cut"} == drawn


@pytest.mark.parametrize("name", TWINS)
def test_twins_take_their_steps_at_the_same_times(name):
    """Whatever else differs: the versions that are seen, the losses, the errors."""
    own = alkit.METHODS[name].schedule()
    micro = 1 + max(micro for *_, micro in own.places)
    base = "1f1b" if TWINS[name] == "bp_cut" else TWINS[name]
    other = alkit.METHODS[base].schedule()
    if base in DELAYED:
        other = schedule_for(base, own.stages, micro)
    costs = {"forward": 1.0, "backward": 2.3, "update": 0.4}
    lines = [simulate(each, lambda task: costs[task.kind], 6) for each in (own, other)]
    assert lines[0].intervals == lines[1].intervals
