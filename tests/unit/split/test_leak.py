"""Distance correlation by its definition."""

import math

import pytest
import torch

from studies.split.leak import distance_correlation


def centred(values):
    """The distances of all pairs, less the means of rows and columns."""
    apart = [[math.dist(a, b) for b in values] for a in values]
    rows = [sum(row) / len(row) for row in apart]
    mean, places = sum(rows) / len(rows), range(len(rows))
    return [apart[i][j] - rows[i] - rows[j] + mean for i in places for j in places]


def test_it_is_what_the_definition_says():
    """The sums of Székely et al. 2007, written out."""
    x = torch.randn(12, 3, dtype=torch.float64)
    for z in (x[:, :1] ** 2, torch.randn(12, 2, dtype=torch.float64)):
        one, other = centred(x.tolist()), centred(z.tolist())
        shared = sum(a * b for a, b in zip(one, other, strict=True))
        scale = math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
        assert distance_correlation(x, z) == pytest.approx(math.sqrt(shared / scale), rel=1e-9)
