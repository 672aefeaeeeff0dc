"""What ranks agree on before the start: the same call, and the planner's choice for devices."""

import pytest
import torch

import alkit
from alkit import launch
from alkit.engine.launch import RankFailed
from alkit.split.planner import Workload, candidates
from alkit.split.profile import Link, Unit
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.times import Line
from tests.unit.split.helpers import samples, units

OPTIONS = {"method": "pipelearn", "batch_size": 8, "lr": 0.1, "progress": False}
SLOW = {"profile": 1, "uplink_mbit": 0.001, "downlink_mbit": 0.001}


def fit(**options):
    return alkit.fit(units(), samples(37), **OPTIONS | options)


def test_a_fast_link_takes_work_to_the_server_and_a_slow_one_leaves_it():
    first = Unit(Line(each=1.0), Line(each=1.0), 0.0, 100.0, 10)
    own = [first, Unit(Line(each=9.0), Line(each=9.0), 0.0, 1.0, 10)]
    load = Workload.of(
        Settings(devices=1), Stream(torch.zeros(100, 50), torch.zeros(100), Settings(), 0)
    )
    assert load.input_bytes == 200
    for link, cut in ((Link(1e9, 1e9), 0), (Link(1.0, 1.0), 2)):
        device = [each.scaled(100 if cut == 0 else 1) for each in own]
        assert candidates(device, own, link, load)[0].cut == cut


def test_the_profiler_chooses_for_every_device_and_a_run_that_goes_on_keeps_it(tmp_path):
    own = {"checkpoint": tmp_path / "run", "ranks": 3} | SLOW
    chosen = fit(**own).details.settings
    # on such a link the pixels of an epoch are less than the weights up and down, and what was
    # measured on this machine, busy or not, is nothing beside either
    assert chosen.cuts == (0,)
    other = {"uplink_mbit": 1e6, "downlink_mbit": 1e6}
    with pytest.raises(RankFailed, match="uplink_mbit is"):
        fit(**own | other)
    assert fit(**own, epochs=2).details.settings.cuts == (0,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SLOW, "no machines to measure"),
        ({"ranks": 3, "workers": 3}, "workers is 3 and there are 3 ranks"),
        ({"ranks": 3, "profile": 1}, "uplink_mbit and downlink_mbit"),
    ],
)
def test_what_does_not_start(options, words):
    with pytest.raises(ValueError, match=words):
        fit(**options)


def _another_round_on_one():
    rank = torch.distributed.get_rank()
    return fit(aggregate_every=2 if rank == 2 else 1)


def test_parties_with_other_settings_are_refused():
    with pytest.raises(RankFailed, match="1 of 3 ranks differ from rank 0 in settings"):
        launch(_another_round_on_one, ranks=3)
