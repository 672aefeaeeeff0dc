"""Partitions: no sample has two owners, sizes and skews are as asked for."""

import pytest
import torch

from alkit.split.deal import STRATEGIES, deal

Y = torch.arange(1000) % 10


def classes(rows) -> int:
    return len(set(Y[rows].tolist()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_partition(strategy):
    parts = deal(Y, 5, strategy)
    rows = torch.cat(parts)
    assert len(set(rows.tolist())) == len(rows)
    assert len(parts) == 5
    again, other = deal(Y, 5, strategy), deal(Y, 5, strategy, seed=2)
    assert all(map(torch.equal, parts, again))
    assert not all(map(torch.equal, parts, other))
    assert len(rows) == 1000  # nothing is left over


def test_sizes_and_skews():
    assert list(map(len, deal(Y, 3, sizes=[100, 50, 7]))) == [100, 50, 7]
    assert list(map(len, deal(Y, 3))) == [334, 333, 333]
    assert all(classes(rows) == 10 for rows in deal(Y, 5))
    few = [classes(rows) for rows in deal(Y, 5, "dirichlet", alpha=0.05)]
    assert min(few) < 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": 600}, "too few"),
        ({"sizes": [900, 200]}, "not more than 1000 in all"),
        ({"sizes": [10]}, "one a device"),
        ({"strategy": "dirichlet", "sizes": [1, 1]}, "draws its own"),
        ({"strategy": "dirichlet", "alpha": 1e-6, "devices": 50}, "raise alpha"),
    ],
)
def test_bad_partitions(options, words):
    with pytest.raises(ValueError, match=words):
        deal(Y, **{"devices": 2} | options)
