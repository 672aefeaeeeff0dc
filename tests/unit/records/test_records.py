"""The committed records hold what the README and the notebooks say of them."""

import pytest

from alkit.records import results


@pytest.fixture(scope="module")
def speed():
    frame = results.load("02_al_pipeline", "cpu")
    return frame[frame.metric != "samples_s"].set_index("metric")


@pytest.fixture(scope="module")
def start():
    return results.load("07_first_pipeline", "cpu")


@pytest.mark.parametrize(
    ("ratio", "least"),
    [("pipeline_over_al", 1.75), ("pipeline_over_al_fm", 1.2), ("measured_of_prediction", 0.92)],
)
def test_the_pipeline_is_as_fast_as_it_must_be(speed, ratio, least):
    assert speed.value[ratio] >= least
    assert speed.n[ratio] >= 3


@pytest.mark.parametrize("data", ["digits", "pydocs"])
def test_al_is_no_worse_than_bp(start, data):
    own = start[start.data == data]
    accuracy = own[own.metric == "accuracy"]
    assert accuracy.groupby("method").seed.nunique().to_dict() == {"al": 3, "bp": 3}
    assert own.set_index("metric").value["accuracy_high"] <= 1.5


def test_records_say_where_they_come_from():
    for frame in (results.load("02_al_pipeline"), results.load("07_first_pipeline")):
        assert len(frame)
        assert not frame[["commit", "versions", "threads", "machine", "date"]].isna().any(axis=None)
        assert not frame.commit.str.contains("unknown").any()
