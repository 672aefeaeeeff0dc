"""A device's row of batches: all samples once an epoch, in an order of its own, whatever is cut."""

from dataclasses import replace

import pytest
import torch

from alkit.base.seeds import generator_for
from alkit.data.parts import Part
from alkit.split.settings import Settings
from alkit.split.stream import Stream, deal, round_count, round_steps, step_sizes, steps_an_epoch


def settings(**options):
    return Settings(devices=1, **{"batch": 8, "epochs": 2} | options)


def stream(count, chosen, device=0):
    return Stream(torch.arange(float(count))[:, None], torch.arange(count), chosen, device)


def samples_of(own, step, micro=1):
    return [int(value) for part in own.step(step, micro) for value in part.y]


@pytest.mark.parametrize("micro", [1, 3, 8])
def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(micro):
    own = stream(20, settings())
    first, second = (
        [one for step in range(3 * epoch, 3 * epoch + 3) for one in samples_of(own, step, micro)]
        for epoch in (0, 1)
    )
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert first[8:16] == samples_of(own, 1)
    assert sum(part.share for part in own.step(2, micro)) == pytest.approx(1.0)
    assert first[:8] != samples_of(stream(20, settings(), 1), 0)


@pytest.mark.parametrize(
    ("samples", "least", "sizes"),
    [(20, 1, [8, 8, 4]), (17, 1, [8, 8, 1]), (17, 2, [8, 9]), (9, 2, [9]), (3, 2, [3])],
)
def test_a_rest_that_is_too_small_joins_the_batch_before(samples, least, sizes):
    chosen = settings(least=least)
    steps = steps_an_epoch(chosen, samples)
    assert [sum(step_sizes(chosen, samples, step, 1)) for step in range(steps)] == sizes
    own = stream(samples, chosen)
    assert [len(samples_of(own, step)) for step in range(steps)] == sizes


def test_rounds():
    each_epoch, each_two, once = (settings(aggregate_every=every) for every in (-1, 2, 0))
    assert round_count(each_epoch, [20]) == 2
    assert [round_steps(each_epoch, 20, at) for at in (0, 1)] == [range(3), range(3, 6)]
    by_two = [range(2), range(2, 4), range(4, 6), range(6, 6)]
    assert [round_steps(each_two, 20, at) for at in range(4)] == by_two
    assert round_count(once, [20]) == 1
    assert round_steps(once, 20, 0) == range(6)


def test_no_sample_has_two_owners_and_none_is_left_over():
    parts = deal(1000, 3)
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    assert list(map(len, parts)) == [334, 333, 333]
    assert all(map(torch.equal, parts, deal(1000, 3)))
    assert not all(map(torch.equal, parts, deal(1000, 3, seed=2)))
    some = torch.cat(deal(1000, 3, 100))
    assert len(set(some.tolist())) == len(some) == 300
    with pytest.raises(ValueError, match="400 samples for each of 3 devices: there are 1000"):
        deal(1000, 3, 400)


def test_pictures_are_augmented_by_device_and_step():
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (8, 1, 6, 6), generator=draw, dtype=torch.uint8)
    part = Part(x, torch.arange(8), 8, mean=(0.5,), std=(0.2,), augment="weak")

    def seen(step, device):
        (own,) = Stream(part.x, part.y, settings(seed=3), device, part).step(step, 1)
        return own

    for step, device in ((0, 0), (1, 0), (0, 1)):
        own = seen(step, device)
        expected = part.images(x[own.y], generator_for(3, "augment", device, step))
        assert torch.equal(own.x, expected)
        assert not torch.equal(own.x, replace(part, augment="none").images(x[own.y]))
