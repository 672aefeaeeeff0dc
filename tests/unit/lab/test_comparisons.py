"""Intervals with the seed as the unit, against independent oracles; verdicts follow them."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from alkit.lab.compare import gap, of_seeds
from studies.common.study import holm, verdict


def test_p_of_gaps_and_intervals_are_scipys():
    a, b = np.array([1.0, 2.5, 2.0, 4.0]), np.array([0.5, 2.0, 2.5, 2.0])
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert of_seeds(a - b)[:3] == pytest.approx((0.625, expected.low, expected.high))
    assert [math.isnan(end) for end in of_seeds([1.0])[:3]] == [False, True, True]
    differences = np.array([0.5, 1.5, -0.2, 2.0, 0.9])
    assert of_seeds(differences).p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert of_seeds([0.0, 0.0, 0.0]).p == 1.0
    assert of_seeds([1.0, 1.0, 1.0]).p == 0.0


def test_holm_by_hand_and_equivalence_by_two_one_sided_tests():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([math.nan, 0.02])[1] == pytest.approx(0.04)  # a test not made yet counts
    assert math.isnan(holm([math.nan, 0.02])[0])
    differences = np.array([0.1, 0.3, -0.2, 0.2, 0.0, 0.25])
    above = stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.5, alternative="less").pvalue
    found = of_seeds(differences)
    assert found.p_within(0.5) == pytest.approx(max(above, below))
    assert found.p_within(0.5) < 0.05 < found.p
    assert of_seeds(differences + 0.5).p_within(0.5) > 0.5  # the mean is outside


def _rows(method, seed, value, metric="accuracy"):
    return {"method": method, "seed": seed, "metric": metric, "value": value, "n": 40}


def test_diverged_runs_leave_no_interval():
    rows = [_rows("bp", seed, 100.0) for seed in range(5)]
    rows += [_rows("tp", seed, 100.0) for seed in range(3)]
    rows += [_rows("tp", seed, seed > 2, "diverged") for seed in range(5)]
    found = gap(pd.DataFrame(rows), "bp", "tp")
    assert (found.seeds, found.diverged, found.decided) == (3, 2, False)
    assert math.isnan(found.low)
    assert str(found) == "2 of 5 diverged"
    assert gap(pd.DataFrame(rows), "bp", "bp")[:4] == (0, 0, 0, 5)


@pytest.mark.parametrize(
    ("differences", "p", "said"),
    [
        ([2.0, 2.1, 1.9, 2.0, 2.2], 0.01, "ahead"),
        ([-2.0, -2.1, -1.9, -2.0, -2.2], 0.01, "behind"),
        ([2.0, 2.1, 1.9, 2.0, 2.2], 0.06, "undecided"),  # not after Holm
        ([2.0, 2.1, 1.9, 2.0], 0.01, "undecided"),  # four seeds decide nothing
        ([0.1, -0.1, 0.05, 0.0, 0.1], 0.9, "equal"),
        ([0.0, 0.0], math.nan, "undecided"),
    ],
)
def test_verdicts(differences, p, said):
    found = of_seeds(differences)
    assert verdict(found, p, 0.5) == said
    assert verdict(found._replace(diverged=1), p, 0.5) == "undecided"
    assert said != "equal" or verdict(found, p, 0.01) == "undecided"
