"""Published tables hold what the sheet says, and verdicts follow the interval."""

import pandas as pd
import pytest

from alkit.records.comparisons import Gap
from alkit.records.results import Run
from studies.common import published


def test_published_numbers_are_those_of_the_sheet():
    found = published.published("al_accuracy")
    assert len(found) == 16
    assert found.source.notna().all()
    table = found.set_index(["data", "model", "method"])
    assert table.final["tiny_imagenet", "resnet", "al"] == 42.00
    assert table.final_sd["imdb", "lstm", "bp"] == 0.38
    assert set(table.n) == {10}
    with pytest.raises(FileNotFoundError, match="al_accuracy"):  # those that there are
        published.published("nothing")


@pytest.mark.parametrize(
    ("theirs", "low", "high", "seeds", "said"),
    [
        (2.0, 0.5, 1.0, 5, "yes"),
        (2.0, -1.0, -0.2, 5, "no"),
        (-1.0, -2.0, -0.5, 5, "yes"),
        (-1.0, -2.0, -0.5, 3, "undecided"),
        (2.0, -0.1, 0.1, 5, "undecided"),
        (2.0, 0.5, 1.0, 1, "undecided"),
    ],
)
def test_verdicts(theirs, low, high, seeds, said):
    found = Gap((low + high) / 2, low, high, seeds)
    assert published.agrees(theirs, found) == said


def _recorded():
    run = Run("12_lstm_al", preset="cpu")
    for method, recipe, right in (("bp", "", 50), ("al", "fixed_codes", 80)):
        for seed in (0, 1):
            labels = {"method": method, "model": "lstm", "data": "ag_news", "seed": seed, "n": 100}
            extra = {"recipe": recipe}
            run.record("accuracy", float(right + seed), unit="%", extra=extra, **labels)
    run.record("mean_of_exits", 82.0, unit="%", extra={"recipe": "fixed_codes"}, **labels)
    return pd.DataFrame(run.rows)


def test_the_table_of_accuracies():
    table = published.accuracy_table(_recorded(), published.published("al_accuracy"))
    row = table.iloc[0]
    assert row["BP"] == "50.50 ± 0.71 (2)"
    assert row["local classifiers"] == "80.50 ± 0.71 (2)"
    assert row["mean of exits"] == "82.00 (1)"
    assert row["AL, original"] == ""
    assert row["BP - local classifiers, points (n)"] == "-30.00 [-30.00, -30.00] (2)"
    assert row["same conclusion?"] == "yes"
    assert row["published AL"] == "91.40 ± 0.25 (10)"
