"""Rates chosen on validation, their grids' edges, and named contrasts, from made records."""

from dataclasses import replace

import pandas as pd
import pytest

from alkit.lab.compare import gap
from studies.common.study import TUNING_SEED, Study

STUDY = Study(
    contrasts=[("a", "b"), ("c", "b"), ("a", "x")],
    margin=2.0,
    say=str,
    colour=lambda name: "0.5",
)


def row(method, metric, value, seed=TUNING_SEED, lr=0.1):
    labels = {"data": "d", "model": "m", "method": method, "seed": seed, "n": 200}
    return labels | {"metric": metric, "value": value, "lr": lr}


def tried(method, values):
    """Return a tuning run a rate; None: it diverged."""
    rows = []
    for lr, value in values.items():
        rows.append(row(method, "diverged", value is None, lr=lr))
        if value is not None:
            rows.append(row(method, "val_accuracy", value, lr=lr))
    return rows


def opened(method, rights):
    return [row(method, "accuracy", right / 2, seed) for seed, right in enumerate(rights)]


def test_a_rate_beside_one_that_diverged_is_no_edge():
    rows = tried("a", {0.1: 50.0, 0.2: 60.0, 0.4: None}) + tried("b", {0.1: 50.0, 0.2: 60.0})
    rows += tried("c", {0.1: 50.0, 0.2: 50.0, 0.4: 40.0}) + tried("d", {0.1: None})
    rows += [row("a", "val_accuracy", 99.0, seed=0, lr=0.8)]  # a seed that counts tunes nothing
    recorded = pd.DataFrame(rows)
    found = STUDY.chosen_rates(recorded)
    assert found == {("d", "m", "a"): 0.2, ("d", "m", "b"): 0.2, ("d", "m", "c"): 0.1}
    edges = STUDY.edges(recorded).set_index("method")
    assert list(edges.index) == ["b", "c"]


def test_contrasts_share_one_error_rate_and_one_margin():
    rows = opened("a", [180, 182, 181, 183, 180]) + opened("b", [160, 161, 162, 161, 160])
    rows += opened("c", [162, 160, 163, 160, 161])
    found = STUDY.contrast_gaps(pd.DataFrame(rows))
    first, *_ = found["d", "m", "a - b"]
    assert found["d", "m", "a - b"][1] == pytest.approx(3 * first.p)  # a - x counts, too
    assert list(STUDY.table(found).verdict) == ["ahead", "equal", "undecided"]
    counted, left = (
        replace(STUDY, missing=each).contrast_gaps(pd.DataFrame(rows))
        for each in ("counted", "left out")
    )
    assert [key[2] for key in counted] == [key[2] for key in left] == ["a - b", "c - b"]
    assert counted["d", "m", "a - b"][1] == pytest.approx(3 * first.p)
    assert left["d", "m", "a - b"][1] == pytest.approx(2 * first.p)


def test_a_gap_is_taken_over_the_seeds_that_both_have_on_one_part():
    rows = [row("a", "accuracy", 90.0, seed) for seed in (0, 1)]
    rows += [row("b", "accuracy", 40.0, seed) for seed in (1, 2)]
    found = gap(pd.DataFrame(rows), "a", "b")
    assert (found.seeds, found.points) == (1, 50)
    with pytest.raises(ValueError, match="on parts of 30, 200 samples"):
        gap(pd.DataFrame([*rows[1:], rows[2] | {"n": 30}]), "a", "b")
