"""Intervals with the seed as the unit, against independent oracles; verdicts follow them."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from alkit.records.comparisons import (
    Gap,
    bootstrap_difference,
    gap,
    holm,
    of_seeds,
    paired_t,
    verdict,
)
from alkit.records.packed import pack


def correctness(rates, items=2000, seed=0):
    return (np.random.default_rng(seed).random((len(rates), items)).T < rates).T.astype(int)


def test_one_seed_agrees_with_the_normal_approximation_and_several_with_drawing():
    a, b = correctness([0.9]), correctness([0.85], seed=1)
    difference, low, high = bootstrap_difference(a, b)
    gain = (a - b)[0]
    half = 1.96 * gain.std(ddof=1) / gain.size**0.5
    assert difference == pytest.approx(gain.mean())
    assert (low, high) == pytest.approx((difference - half, difference + half), abs=0.1 * half)
    _, low_half, high_half = bootstrap_difference(a, b, level=0.5)
    assert high_half - low_half == pytest.approx((high - low) * 0.674 / 1.96, rel=0.1)
    a, b = correctness([0.7, 0.9, 0.6], 40), correctness([0.5, 0.5, 0.6], 40, seed=1)
    rng, gain = np.random.default_rng(5), a - b
    means = [
        gain[rng.integers(3, size=3)][:, rng.integers(40, size=40)].mean() for _ in range(20_000)
    ]
    _, low, high = bootstrap_difference(a, b, resamples=20_000)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.01)


def test_bootstrap_is_paired_deterministic_and_wider_for_seeds_that_disagree():
    a, b = correctness([0.8, 0.6]), correctness([0.7, 0.7], seed=2)
    assert bootstrap_difference(a, a) == (0, 0, 0)
    assert bootstrap_difference(a, b, seed=4) == bootstrap_difference(a, b, seed=4)
    assert len({bootstrap_difference(a, b, seed=s) for s in range(5)}) > 1
    # Thousands of test samples do not make three seeds more.
    a, b = correctness([0.9, 0.7, 0.8], 50_000), correctness([0.8, 0.8, 0.75], 50_000, seed=1)
    difference, low, high = bootstrap_difference(a, b)
    assert difference > 0.01
    assert low < 0 < high
    ones = np.ones((2, 5))
    for bad in (ones * 0.5, []):
        with pytest.raises(ValueError, match="0 and 1"):
            bootstrap_difference(bad, ones)
    with pytest.raises(ValueError, match="a has 2 seeds and 5 test items, b 1 and 5"):
        bootstrap_difference(ones, ones[:1])
    with pytest.raises(ValueError, match="b 2 and 4"):
        bootstrap_difference(ones, ones[:, :4])


def test_p_of_gaps_and_intervals_are_scipys():
    a, b = np.array([1.0, 2.5, 2.0, 4.0]), np.array([0.5, 2.0, 2.5, 2.0])
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert paired_t(a - b) == pytest.approx((0.625, expected.low, expected.high))
    assert [math.isnan(end) for end in paired_t(np.array([1.0]))] == [False, True, True]
    differences = np.array([0.5, 1.5, -0.2, 2.0, 0.9])
    assert of_seeds(differences).p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert math.isnan(of_seeds([1.0]).p)
    assert of_seeds([0.0, 0.0, 0.0]).p == 1.0
    assert of_seeds([1.0, 1.0, 1.0]).p == 0.0


def test_holm_by_hand_and_equivalence_by_two_one_sided_tests():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([math.nan, 0.02])[1] == pytest.approx(0.04)  # a test not made yet counts
    assert math.isnan(holm([math.nan, 0.02])[0])
    assert holm([]) == []
    differences = np.array([0.1, 0.3, -0.2, 0.2, 0.0, 0.25])
    above = stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.5, alternative="less").pvalue
    found = of_seeds(differences)
    assert found.p_within(0.5) == pytest.approx(max(above, below))
    assert found.p_within(0.5) < 0.05 < found.p
    assert of_seeds(differences + 0.5).p_within(0.5) > 0.5  # the mean is outside
    assert math.isnan(of_seeds([0.0]).p_within(0.5))
    with pytest.raises(ValueError, match="margin is 0: give points above 0"):
        found.p_within(0)


def _gap(low, high, boot_low, boot_high, seeds, agree=False):
    ends = (low, high) if agree else (-1.0, 1.0)
    return Gap((low + high) / 2, low, high, boot_low, boot_high, seeds, *ends)


@pytest.mark.parametrize(
    ("found", "decided"),
    [
        (_gap(0.5, 1.0, 0.6, 0.9, 5), True),
        (_gap(-1.0, -0.2, -0.9, -0.3, 5), True),
        (_gap(-0.5, 1.0, 0.6, 0.9, 5), False),  # the seeds alone do not decide
        (_gap(0.5, 1.0, -0.1, 0.9, 5), False),  # nor may the samples contradict
        (_gap(0.5, 1.0, 0.6, 0.9, 4), False),
        (_gap(0.5, 1.0, 0.6, 0.9, 3, agree=True), True),
        (_gap(0.5, 1.0, math.nan, math.nan, 5), True),  # no test samples recorded
        (_gap(math.nan, math.nan, 0.6, 0.9, 1, agree=True), False),
        (Gap(*[math.nan] * 5, 0), False),
    ],
)
def test_verdicts_need_both_intervals_and_enough_seeds(found, decided):
    assert found.decided == decided


def test_one_seed_never_decides_and_a_margin_may():
    assert not of_seeds([5.0]).decided
    assert str(of_seeds([5.0])) == "+5.00 (1)"
    found = of_seeds([0.8, 1.0, 0.9, 1.1, 0.95])
    assert found.less(0.5).decided
    assert found.less(2.0).decided
    assert found.less(2.0).points < 0
    assert not found.less(1.0).decided


def _rows(method, seed, correct, metric="correct"):
    value = pack(torch.tensor(correct)) if metric == "correct" else correct
    return {"method": method, "seed": seed, "metric": metric, "value": value, "n": 40}


def test_diverged_runs_leave_no_interval():
    right = [1.0] * 40
    rows = [_rows("bp", seed, right) for seed in range(5)]
    rows += [_rows("tp", seed, right) for seed in range(3)]
    rows += [_rows("tp", seed, seed > 2, "diverged") for seed in range(5)]
    found = gap(pd.DataFrame(rows), "bp", "tp")
    assert (found.seeds, found.diverged, found.decided) == (3, 2, False)
    assert math.isnan(found.low)
    assert str(found) == "2 of 5 diverged"


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
    assert verdict(of_seeds(differences), p, 0.5) == said
    assert verdict(of_seeds(differences)._replace(diverged=1), p, 0.5) == "undecided"
    assert said != "equal" or verdict(of_seeds(differences), p, 0.01) == "undecided"
