"""The committed records hold what the README and the notebooks say of them."""

import pytest

from alkit.lab import results


@pytest.fixture(scope="module")
def speed():
    frame = results.load("02_al_pipeline", "cpu")
    return frame[frame.metric != "samples_s"].set_index("metric")


@pytest.mark.parametrize(
    ("ratio", "least"),
    [("pipeline_over_al", 1.75), ("pipeline_over_al_fm", 1.2), ("measured_of_prediction", 0.92)],
)
def test_the_pipeline_is_as_fast_as_it_must_be(speed, ratio, least):
    assert speed.value[ratio] >= least
    assert speed.n[ratio] >= 3


def test_records_say_where_they_come_from():
    for frame in (results.load("02_al_pipeline"), results.load("03_speed")):
        assert len(frame)
        assert not frame[["commit", "versions", "threads", "machine", "date"]].isna().any(axis=None)
        assert not frame.commit.str.contains("unknown").any()
