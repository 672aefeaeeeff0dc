"""Runs of processes: what they leave is read, and a failure says what they printed."""

import pytest

from alkit.split.schedule import LANES
from studies.split import programs
from studies.split.links import Links, LinksUnavailable


def test_a_run(tmp_path):
    config = {"norm": "group", "batch": 50, "data_size": 150, "cut": 2, "micro": 2}
    found = programs.run({"data": "digits"} | config, tmp_path)
    assert len(found.iterations_s) == 2
    assert found.iteration_s > 0
    assert found.timeline.resources == tuple(f"{lane} 0" for lane in LANES)
    assert found.table.test_accuracy[0] == found.rounds[0]["scores"]["accuracy"]
    # weights travel, too
    sizes = [i.bytes for i in found.timeline.intervals if i.resource == "downlink 0"]
    assert len(sizes) == 7
    assert max(sizes) > 70_000


def test_a_failed_run_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="give VGG5"):
        programs.run({"model": "VGG7"}, tmp_path)


def test_final_weights_arrive_over_a_slow_link(tmp_path):
    """They take longer than the grace that a server gives its streams at the end."""
    try:
        links = Links(1, 20, 4)
    except LinksUnavailable as error:
        pytest.skip(f"no real links here: {error}")
    config = {"cut": 1, "data_size": 20, "batch": 20, "epochs": 1, "test": False}
    with links:
        config |= {"data": "digits", "model": "VGG5"}
        found = programs.run(config, tmp_path / "run", links, limit_s=100)
    assert len(found.table)
