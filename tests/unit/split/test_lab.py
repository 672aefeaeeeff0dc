"""Runs of processes: what they leave is read, and a failure says what they printed."""

import pytest

from studies.split import programs
from studies.split.links import Links, LinksUnavailable


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
