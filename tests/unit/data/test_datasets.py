"""Parts of data sets, batches, splits and subsets."""

from collections import Counter
from functools import partial

import pytest
import torch

from alkit.data.datasets import DataSet, Part, stratified_split


def numbered(labels):
    """Return samples that are their own number."""
    return Part(torch.arange(float(len(labels)))[:, None], labels, 3)


def order(part, *size, **options):
    return [int(v) for x, _ in part.batches(*size, **options) for v in x]


SHARES = [((0.6, 0.2), [[30, 6, 14], [10, 2, 5], [10, 2, 4]]), ((0.1,), [[5, 1, 2], [45, 9, 21]])]


@pytest.mark.parametrize(("shares", "expected"), SHARES)
def test_a_split_deals_each_sample_once_and_each_class_in_its_share(shares, expected):
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 23)[torch.randperm(83)]
    rows, again, other = (stratified_split(labels, seed=s, shares=shares) for s in (3, 3, 4))
    assert torch.cat(rows).sort().values.tolist() == list(range(83))
    assert [labels[part].bincount().tolist() for part in rows] == expected
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))
    assert not torch.equal(rows[0], other[0])


def test_batches_hold_each_sample_once_with_its_label():
    part = numbered(torch.arange(20) % 3)
    batches = [*part.batches(6)]
    assert [len(y) for _, y in batches] == [6, 6, 6, 2]
    for x, y_B in batches:
        assert y_B.dtype == torch.int64
        assert torch.equal(y_B, x[:, 0].long() % 3)
    assert sorted(order(part, 6)) == order(part, 6, shuffle=False) == list(range(20))
    assert order(part, 6) != list(range(20))
    assert len([*part.batches(100)]) == 1


def test_texts_come_with_a_mask_cut_to_the_longest_of_the_batch():
    texts = torch.tensor([[5, 6, 7, 8, 0], [5, 0, 0, 0, 0], [9, 9, 0, 0, 0], [4, 4, 4, 0, 0]])
    batches = Part(texts, torch.tensor([0, 1, 1, 0]), 2).batches(2, shuffle=False)
    expected = (texts[:2], 4), (texts[2:], 3)
    for ((tokens_BT, mask_BT), _), (rows, longest) in zip(batches, expected, strict=True):
        assert torch.equal(tokens_BT, rows[:, :longest])
        assert torch.equal(mask_BT, rows[:, :longest] != 0)


BYTES = partial(Part, torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), 2)
UNEVEN = numbered(torch.tensor([0] * 50 + [1] * 20 + [2] * 3))
SET = DataSet("uneven", UNEVEN, UNEVEN, UNEVEN, 3, ("a", "b", "c"))
REFUSED = [
    (lambda: numbered(torch.tensor([0, 2, 3, 9])), "labels are from 0 to 2, got 3"),
    (lambda: numbered(torch.tensor([0, -1, 3])), "labels are from 0 to 2, got -1"),
    (lambda: Part(torch.zeros(4, 1), torch.zeros(3), 3), r"inputs of \[4\] samples, \[3\] targets"),
    (BYTES, "give mean and std of each channel"),
    (lambda: BYTES(mean=(0.1, 0.2), std=(1, 1)), "mean and std of each channel"),
    (lambda: SET.subset(test=74), "74 samples asked, there are 73"),
    (lambda: SET.subset(train=0), "0 samples asked"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_no_part_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SUBSETS = [(73, [50, 20, 3]), (30, [14, 13, 3]), (9, [3, 3, 3]), (3, [1, 1, 1])]


@pytest.mark.parametrize(("size", "counts"), SUBSETS)
def test_a_subset_is_as_balanced_as_the_classes_allow_and_a_function_of_the_seed(size, counts):
    one, again, other = (SET.subset(train=size, seed=seed).train for seed in (1, 1, 2))
    assert sorted(Counter(one.y.tolist()).values(), reverse=True) == counts
    assert (one.y == 2).sum() == counts[2]
    rows = one.x.flatten().long()
    assert torch.equal(UNEVEN.y[rows], one.y)
    assert len(rows.unique()) == size
    assert torch.equal(one.x, again.x)
    assert size == 73 or not torch.equal(one.x, other.x)
    found = SET.subset(validation=size, test=None)
    assert (len(found.train), len(found.validation), len(found.test)) == (73, size, 73)
