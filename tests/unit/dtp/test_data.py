"""Pictures as the presets want them."""

import pytest
import torch

from studies.dtp.presets import PRESETS, pictures


def test_digits_of_any_side():
    found = pictures("digits", 16, train=100, test=50)
    assert found.train.x.shape == (100, 1, 16, 16)
    assert (len(found.test), len(found.validation)) == (50, 359)


@pytest.mark.realdata
def test_small_pictures_are_means_of_scaled_ones():
    """Needs CIFAR-10 in ALKIT_DATA."""
    try:
        small, large = PRESETS["tiny"].load(train=50), pictures("cifar10", train=50)
    except FileNotFoundError:
        pytest.skip("CIFAR-10 is not in ALKIT_DATA")
    x, _ = next(iter(large.train.batches(50, shuffle=False)))
    assert x.std().item() == pytest.approx(1, abs=0.1)
    wanted = torch.nn.functional.avg_pool2d(x, 2)
    torch.testing.assert_close(small.train.x, wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="side is 5"):
        pictures("cifar10", 5)
