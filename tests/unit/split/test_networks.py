"""The networks have the published numbers of parameters and shapes at every cut."""

import pytest
import torch

from alkit.split.networks import NETWORKS, build, has_batch_norm

COUNTS = {
    "VGG5": (5, 582_346),
    "VGG8": (8, 1_337_898),
    "VGG11": (11, 28_149_514),
    "VGG16": (16, 33_646_666),
    "ResNet18": (10, 11_181_642),
    "ResNet50": (18, 23_528_522),
    "MobileNetSmall": (15, 1_528_106),
    "MobileNetLarge": (19, 4_214_842),
}
KIB = {
    "VGG5": [32, 16, 16, 0.5],
    "ResNet18": [16, 16, 16, 8, 8, 4, 4, 2, 2],
    "ResNet50": [16, *[64] * 3, *[32] * 4, *[16] * 6, *[8] * 3],
    "MobileNetLarge": [16, 16, 6, 6, *[2.5] * 3, *[1.25] * 4, 1.75, 1.75, *[0.625] * 3, 3.75, 5],
}


def parameters(units):
    return sum(p.numel() for unit in units for p in unit.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_units_parameters_and_bytes_at_every_cut(name):
    """Every unit can be the first of a stage: its input is a leaf, which nothing may overwrite."""
    units, x, sizes = build(name), torch.randn(2, 3, 32, 32), []
    assert (len(units), parameters(units)) == COUNTS[name]
    for unit in units:
        x = x.detach().requires_grad_()
        out = unit(x)
        out.sum().backward()
        assert x.grad is not None
        x = out
        sizes.append(x[0].numel() * 4 / 1024)
    assert x.shape == (2, 10)
    assert name not in KIB or sizes[:-1] == KIB[name]
    assert has_batch_norm(units)
    if name == "VGG5":  # digits take fewer
        assert parameters(build(name, channels=1, side=28)) == 458_890
        assert not has_batch_norm(build(name, norm="group"))
