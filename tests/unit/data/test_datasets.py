"""Parts, batches and the embedded digits."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from alkit.data.datasets import DataSet, Part, load, stratified_split


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def numbered(count: int, num_classes: int = 3) -> Part:
    """Return images whose single pixel is the number of the sample."""
    x = torch.arange(count, dtype=torch.float32).reshape(count, 1, 1, 1)
    return Part(x, torch.arange(count) % num_classes, num_classes)


def order(part: Part, *args: Any, **options: Any) -> list[int]:
    return [int(v) for x, _ in part.batches(*args, **options) for v in x.flatten()]


TEXTS = torch.tensor([[5, 6, 7, 8, 0], [5, 0, 0, 0, 0], [9, 9, 0, 0, 0], [4, 4, 4, 0, 0]])


def text_part() -> Part:
    return Part(TEXTS, torch.tensor([0, 1, 1, 0]), 2)


def test_digits_are_scikit_learns_standardised_by_the_training_part(digits):
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target)
    rows = stratified_split(y, seed=0)
    mean, sd = x[rows[0]].mean(), x[rows[0]].std()
    for part, row in zip((digits.train, digits.validation, digits.test), rows, strict=True):
        torch.testing.assert_close(part.x, (x[row] - mean) / sd)
        assert torch.equal(part.y, y[row])
    assert digits.train.x.shape == (1078, 1, 8, 8)


def test_digits_describe_themselves_may_be_stretched_and_are_a_function_of_the_seed(digits):
    assert digits.describe() == (
        "digits: 1078 train, 359 validation, 360 test; 10 classes; images 1x8x8"
    )
    assert digits.class_names == tuple("0123456789")
    state = torch.get_rng_state()
    again, other = load("digits", seed=0), load("digits", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.train.x, digits.train.x)
    assert not torch.equal(other.train.x, digits.train.x)
    large = load("digits", size=32)
    assert large.train.x.shape == (1078, 1, 32, 32)
    assert torch.equal(large.train.y, digits.train.y)
    assert abs(large.train.x.mean()) < 1e-4
    with pytest.raises(ValueError, match="no data set 'fashion': give ag_news, .*, digits, "):
        load("fashion")
    with pytest.raises(TypeError, match="max_len"):
        load("digits", max_len=3)


def test_a_split_deals_each_sample_once_and_each_class_in_its_share():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 23)[torch.randperm(83)]
    rows = stratified_split(labels, seed=3)
    assert torch.cat(rows).sort().values.tolist() == list(range(83))
    counts = [Counter(labels[part].tolist()) for part in rows]
    assert counts == [{0: 30, 1: 6, 2: 14}, {0: 10, 1: 2, 2: 5}, {0: 10, 1: 2, 2: 4}]
    again, other = stratified_split(labels, seed=3), stratified_split(labels, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))
    assert not torch.equal(rows[0], other[0])


def test_batches_hold_each_sample_once_with_its_label():
    part = numbered(20)
    batches = list(part.batches(6))
    assert len(batches) == 4
    seen = []
    for x, y_B in batches:
        assert y_B.dtype == torch.int64
        numbers = x.flatten().long()
        assert torch.equal(y_B, numbers % 3)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(20))
    assert seen != list(range(20))
    part = numbered(7)
    assert order(part, 3, shuffle=False) == list(range(7))
    assert len(list(part.batches(100))) == 1


def test_batches_depend_on_seed_and_epoch_alone():
    part = numbered(40)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = order(part, 8, seed=2, epoch=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert order(part, 8, seed=2, epoch=5) == first
    assert order(part, 7, seed=2, epoch=5) == first
    orders = {tuple(order(part, 8, seed=s, epoch=e)) for s in range(4) for e in range(4)}
    assert len(orders) == 16


def test_texts_come_with_a_mask_cut_to_the_longest_of_the_batch():
    batches = list(text_part().batches(2, shuffle=False))
    for ((tokens_BT, mask_BT), _), rows, longest in zip(
        batches, TEXTS.split(2), (4, 3), strict=True
    ):
        assert torch.equal(tokens_BT, rows[:, :longest])
        assert mask_BT.dtype == torch.bool
        assert torch.equal(mask_BT, rows[:, :longest] != 0)
        assert mask_BT.any(dim=1).all()


IMAGES, BYTES = torch.zeros(4, 1, 2, 2), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
SCALED = partial(Part, BYTES, torch.tensor([0, 1]), 2)


def labelled(*labels):
    return lambda: Part(IMAGES, torch.tensor(labels), 3)


REFUSED = [
    (labelled(0, 2, 3, 9), "labels are from 0 to 2, got 3"),
    (labelled(0, -1, 3, 9), "labels are from 0 to 2, got -1"),
    (labelled(0, 1, 2), r"inputs of \[4\] samples, \[3\] targets"),
    (lambda: Part(BYTES[:, :1], torch.tensor([0, 1]), 2), "give mean and std of each channel"),
    (lambda: SCALED(mean=(0.1, 0.2, 0.3)), "mean and std of each channel"),
    (lambda: SCALED(mean=(0.1, 0.2), std=(1, 1)), "mean and std of each channel"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_no_part_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_labels_become_int64_and_are_held_out_by_class():
    for labels in ([0, 2], torch.tensor([0, 2], dtype=torch.uint8), torch.tensor([0.0, 2.0])):
        part = Part(torch.zeros(2, 1), labels, 3)  # type: ignore[arg-type]
        assert part.y.dtype == torch.int64
        assert part.y.tolist() == [0, 2]
    labels = torch.arange(45) % 3
    held, kept = stratified_split(labels, seed=2, shares=(0.1,))
    assert torch.cat([kept, held]).sort().values.tolist() == list(range(45))
    assert Counter(labels[held].tolist()) == {0: 2, 1: 2, 2: 2}
    assert torch.equal(held, stratified_split(labels, seed=2, shares=(0.1,))[0])
    assert not torch.equal(held, stratified_split(labels, seed=3, shares=(0.1,))[0])


def uneven() -> DataSet:
    """Three classes of 50, 20 and 3 samples in each part."""
    y = torch.tensor([0] * 50 + [1] * 20 + [2] * 3)
    part = Part(torch.arange(73.0)[:, None], y, 3)
    return DataSet("uneven", part, part, part, 3, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("size", "counts"), [(73, [50, 20, 3]), (30, [14, 13, 3]), (9, [3, 3, 3]), (3, [1, 1, 1])]
)
def test_a_subset_is_as_balanced_as_the_classes_allow(size, counts):
    got = torch.bincount(uneven().subset(train=size, seed=1).train.y, minlength=3).tolist()
    assert got[2] == counts[2]
    assert sorted(got, reverse=True) == counts
    assert sum(got) == size


def test_a_subset_is_a_function_of_the_seed_keeps_labels_and_says_so():
    data = uneven()
    one, again, other = (data.subset(train=12, seed=seed).train for seed in (1, 1, 2))
    assert torch.equal(one.x, again.x)
    assert not torch.equal(one.x, other.x)
    rows = one.x.flatten().long()
    assert torch.equal(data.train.y[rows], one.y)
    assert len(rows.unique()) == 12
    data = uneven().subset(validation=5, test=None)
    assert (len(data.train), len(data.validation), len(data.test)) == (73, 5, 73)
    with pytest.raises(ValueError, match="74 samples asked, there are 73"):
        data.subset(test=74)
    with pytest.raises(ValueError, match="0 samples asked"):
        data.subset(train=0)
