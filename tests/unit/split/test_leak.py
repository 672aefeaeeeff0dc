"""Distance correlation: by its definition, and on what is known of it."""

import math

import pytest
import torch
from torch import nn

from studies.split.leak import distance_correlation, leaks


def by_definition(x, z):
    """The sums of Székely et al. 2007, written out."""
    n = len(x)

    def centred(values):
        apart = [[math.dist(a, b) for b in values] for a in values]
        rows = [sum(row) / n for row in apart]
        mean = sum(rows) / n
        return [[apart[i][j] - rows[i] - rows[j] + mean for j in range(n)] for i in range(n)]

    one, other = centred(x.tolist()), centred(z.tolist())
    both = [(a, b) for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True)]
    shared, left, right = (sum(f(a, b) for a, b in both) for f in (
        lambda a, b: a * b, lambda a, b: a * a, lambda a, b: b * b))  # fmt: skip
    return math.sqrt(max(shared, 0) / math.sqrt(left * right))


def test_it_is_what_the_definition_says():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    for z in (x[:, :1] ** 2, torch.randn(12, 2, generator=generator, dtype=torch.float64)):
        assert distance_correlation(x, z) == pytest.approx(by_definition(x, z), rel=1e-9)


def test_each_cut_has_one_and_units_stay_as_they_are():
    torch.manual_seed(0)
    units = [nn.Flatten(), nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), nn.Linear(16, 1)]
    x = torch.randn(64, 1, 4, 4)
    first, *_, last = leaks(units, x)
    assert first == pytest.approx(1.0)
    assert last < 0.9
    assert units[1][1].training
    assert int(units[1][1].num_batches_tracked) == 0
