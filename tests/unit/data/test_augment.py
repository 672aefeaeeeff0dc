"""Augmentation, against torchvision's colour operations and a loop over the images."""

from dataclasses import replace

import pytest
import torch

from alkit.data import augment
from alkit.data.parts import Part

MEAN, STD = (0.48, 0.44, 0.39), (0.27, 0.26, 0.28)


def images(count=8, size=8):
    shape, drawn = (count, 3, size, size), torch.Generator().manual_seed(1)
    return torch.randint(256, shape, dtype=torch.uint8, generator=drawn)


def part(x, **options):
    return Part(x, torch.arange(len(x)) % 4, 4, mean=MEAN, std=STD, **options)


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("kind", "mode"), [((), "constant"), (("edge",), "replicate")])
def test_a_crop_with_a_flip_is_a_window_of_the_padded_image(kind, mode):
    x_BCHW = images(50).float()
    got = augment.crop_and_flip(x_BCHW, generator(), *kind)
    assert torch.equal(augment.crop_and_flip(images(50), generator(), *kind), got)  # of bytes
    padded = torch.nn.functional.pad(x_BCHW, (4, 4, 4, 4), mode=mode)
    drawn = generator()
    top_B, left_B = torch.randint(9, (2, 50), generator=drawn).tolist()
    flip_B = (torch.rand(50, generator=drawn) < 0.5).tolist()
    for at, (top, left, flip) in enumerate(zip(top_B, left_B, flip_B, strict=True)):
        window = padded[at, :, top : top + 8, left : left + 8]
        assert torch.equal(got[at], window.flip(2) if flip else window)
    assert set(top_B) == set(left_B) == set(range(9))
    assert set(flip_B) == {False, True}


def test_strong_colours_are_as_often_and_as_strong_as_they_should_be():
    x_BCHW = (images(1, 4).float() / 255).expand(2000, -1, -1, -1)
    got = augment.colours(x_BCHW, generator())
    same = (got == x_BCHW).flatten(1).all(dim=1)
    grey = (got - got.mean(dim=1, keepdim=True)).abs().flatten(1).amax(dim=1) < 1e-6
    assert abs(float(same.float().mean()) - 0.2 * 0.8) < 0.04
    assert abs(float(grey.float().mean()) - 0.2) < 0.04
    assert float(got.min()) >= 0
    assert float(got.max()) <= 1
    grey_BCHW = torch.full((500, 3, 2, 2), 0.5)  # contrast, saturation and hue leave it as it is
    ratios = augment.colours(grey_BCHW, generator())[:, 0, 0, 0] / 0.5
    assert 0.6 <= float(ratios.min()) < 0.65
    assert 1.35 < float(ratios.max()) <= 1.4 + 1e-6


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_batches_depend_on_seed_epoch_and_number_alone(kind):
    # equal images, so that nothing but the augmentation can differ
    still = part(images(1).expand(64, -1, -1, -1), augment=kind)

    def read(seed=0, epoch=0):
        return torch.stack([x for x, _ in still.batches(16, seed=seed, epoch=epoch)])

    first = read()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(first, read())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], read(seed=1)[0])
    assert not torch.equal(first[0], read(epoch=1)[0])
    abandoned, again = (still.batches(16) for _ in range(2))  # and may be read out of turn
    next(abandoned), next(again)
    assert torch.equal(next(again)[0], first[1])
    assert torch.equal(next(abandoned)[0], first[1])


def test_clean_batches_are_scaled_and_have_the_order_of_augmented_ones():
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    data = part(images(64))
    got = torch.cat([x for x, _ in data.batches(16, shuffle=False)])
    torch.testing.assert_close(got, (data.x.double() / 255 - mean) / std, check_dtype=False)
    assert got.dtype == torch.float32
    strong = part(images(64), augment="strong").batches(16, seed=3, epoch=2)
    for (_, clean), (_, other) in zip(data.batches(16, seed=3, epoch=2), strong, strict=True):
        assert torch.equal(clean, other)


GREY = Part(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4), 2, mean=(0,), std=(1,))


@pytest.mark.parametrize("made", [Part(torch.rand(4, 3, 8, 8), torch.zeros(4), 2), GREY])
def test_colours_are_of_bytes_of_three_channels(made):
    with pytest.raises(ValueError, match="augment is 'strong' .*: give none, weak, edge$"):
        replace(made, augment="strong")
