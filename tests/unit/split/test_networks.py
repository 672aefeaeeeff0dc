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
    "VGG11": [64, 32, 64, 16, 32, 8, 8, 2, 16, 16],
    "VGG16": [256, 64, 128, 32, 64, 64, 16, 32, 32, 8, 8, 8, 2, 16, 16],
    "ResNet18": [16, 16, 16, 8, 8, 4, 4, 2, 2],
    "ResNet50": [16, *[64] * 3, *[32] * 4, *[16] * 6, *[8] * 3],
    "MobileNetSmall": [16, 4, 1.5, 1.5, *[0.625] * 3, 0.75, 0.75, *[0.375] * 3, 2.25, 4],
    "MobileNetLarge": [16, 16, 6, 6, *[2.5] * 3, *[1.25] * 4, 1.75, 1.75, *[0.625] * 3, 3.75, 5],
}
ON_THE_DEVICE = [9_536, 83_520, 157_504, 387_648, 683_072, 1_602_112]  # ResNet18, by cut


def parameters(units) -> int:
    return sum(p.numel() for unit in units for p in unit.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_units_and_parameters(name):
    units = build(name)
    assert (len(units), parameters(units)) == COUNTS[name]
    if name == "VGG5":  # digits take fewer
        assert parameters(build(name, channels=1, side=28)) == 458_890
    if name == "ResNet18":
        assert [parameters(units[:cut]) for cut in range(1, 7)] == ON_THE_DEVICE
    assert has_batch_norm(units)
    assert not has_batch_norm(build(name, norm="group"))


@pytest.mark.parametrize("name", KIB)
def test_bytes_at_every_cut(name):
    units, x, sizes = build(name), torch.zeros(2, 3, 32, 32), []
    with torch.no_grad():
        for unit in units:
            x = unit.eval()(x)
            sizes.append(x[0].numel() * 4 / 1024)
    assert sizes[:-1] == KIB[name]
    assert x.shape == (2, 10)


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = build("VGG5", seed=3)
    torch.manual_seed(2)
    again, other = build("VGG5", seed=3), build("VGG5", seed=4)
    assert torch.equal(first[0][0].weight, again[0][0].weight)
    assert not torch.equal(first[0][0].weight, other[0][0].weight)


def test_bad_names_say_what_there_is():
    with pytest.raises(ValueError, match="there are VGG5"):
        build("VGG7")
    with pytest.raises(ValueError, match="ResNet18 takes 3 channels, and images have 1"):
        build("ResNet18", channels=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_unit_can_be_the_first_of_a_stage(name):
    """Its input is a leaf with a gradient, which nothing may overwrite."""
    units, x = build(name), torch.randn(2, 3, 32, 32)
    for unit in units:
        x = x.detach().requires_grad_()
        out = unit(x)
        out.sum().backward()
        assert x.grad is not None
        x = out
