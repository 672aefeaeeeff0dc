"""Contrasts of made gaps: one error rate, one margin."""

import pytest

from alkit.lab.compare import of_seeds
from studies.common.study import contrast_table


def test_contrasts_share_one_error_rate_and_one_margin():
    gaps = {
        "a - b": of_seeds([10.0, 10.5, 9.5, 11.0, 10.0]),
        "c - b": of_seeds([1.0, -0.5, 0.5, -0.5, 0.5]),
        "a - x": of_seeds([1.0]),
    }
    table = contrast_table(gaps, 2.0, data="d")
    assert table["p, Holm"][0] == pytest.approx(3 * gaps["a - b"].p)  # a - x counts, too
    assert list(table.verdict) == ["ahead", "equal", "undecided"]
    assert set(table.data) == {"d"}
