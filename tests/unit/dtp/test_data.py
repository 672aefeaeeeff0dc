"""Pictures as the presets want them."""

import pytest
import torch

from studies.dtp.data import NORMALISATIONS, pictures
from studies.dtp.presets import PRESETS


def test_digits_of_any_side_and_the_original_protocol_without_a_validation_part():
    found = pictures("digits", side=16, train=100, test=50)
    assert found.train.x.shape == (100, 1, 16, 16)
    assert (len(found.test), len(found.validation)) == (50, 359)
    plain, original = (pictures("digits", protocol=p) for p in ("validation", "original"))
    assert len(original.train) == len(plain.train) + len(plain.validation)
    assert torch.equal(original.validation.x, plain.test.x)


@pytest.mark.realdata
def test_scales_of_cifar10():
    """Needs CIFAR-10 in ALKIT_DATA."""
    try:
        found = {
            name: pictures("cifar10", normalisation=name, train=200)
            for name in ("cifar10", "cifar10_3xstd", "imagenet")
        }
    except FileNotFoundError:
        pytest.skip("CIFAR-10 is not in ALKIT_DATA")
    spreads = {name: next(iter(f.train.batches(200)))[0].std().item() for name, f in found.items()}
    assert spreads["cifar10"] == pytest.approx(1, abs=0.1)
    assert spreads["cifar10_3xstd"] == pytest.approx(spreads["cifar10"] * 0.247 / 0.606, rel=0.05)
    small = PRESETS["tiny"].load(train=50)
    assert small.train.x.shape == (50, 3, 16, 16)
    large = pictures("cifar10", normalisation="cifar10", train=50)
    x, _ = next(iter(large.train.batches(50, shuffle=False)))
    wanted = torch.nn.functional.avg_pool2d(x, 2)
    torch.testing.assert_close(small.train.x, wanted, atol=1e-5, rtol=1e-5)


def test_what_is_refused():
    with pytest.raises(ValueError, match="protocol is 'test': give validation, original"):
        pictures("digits", protocol="test")
    with pytest.raises(ValueError, match=f"give {', '.join(NORMALISATIONS)}, or none"):
        pictures("digits", normalisation="cifar")
