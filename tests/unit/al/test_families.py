"""Published networks as AL models: their totals, all modes with dropout, widths of bridges."""

import pytest
import torch
from torch import nn

from alkit import to_al
from alkit.al.bridges import pool
from alkit.al.fit import of_numbers
from studies.al.networks import lstm_al, resnet18_al, transformer, vgg_al


@pytest.mark.parametrize(
    ("blocks", "counts"),
    [
        (vgg_al, {"effective": 11_152_784, "affiliated": 110_213_900, "total": 121_366_684}),
        (resnet18_al, {"effective": 23_541_788, "affiliated": 185_134_300, "total": 208_676_088}),
    ],
    ids=["vgg", "resnet"],
)
def test_published_totals_of_image_models(blocks, counts):
    with torch.device("meta"):  # shapes without numbers: these models are large
        model = to_al(blocks(), 200, torch.zeros(2, 3, 32, 32), recipe="original")
    assert model.parameter_counts() == counts
    first = model[0].parameter_counts()
    assert (first["b"], first["g"], first["h"]) == (66_237_700, 140_700, 140_200)


def final_states(s):
    """Pool as published: the sum of both directions' final states, (B, H)."""
    return s[2][0].sum(0)


SAMPLE = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(("classes", "total"), [(2, 13_533_634), (4, 13_534_148), (14, 13_536_718)])
def test_published_totals_of_lstms(classes, total):
    pools = [pool, *[final_states] * 3]
    model = to_al(lstm_al(30_000), classes, SAMPLE, recipe="original", pool=pools)
    counts = model.parameter_counts()
    assert counts["total"] == total
    if classes == 4:
        assert counts == {"effective": 13_379_652, "affiliated": 154_496, "total": 13_534_148}


def test_published_totals_of_transformers_hold_with_their_unused_parameters():
    """The published code registers another 516,556 parameters a block, and never uses them."""
    sizes = {"blocks": 3, "width": 300, "heads": 6, "ffn": 256, "dropout": 0.3}
    counts = to_al(transformer(30_000, **sizes), 4, SAMPLE, recipe="original").parameter_counts()
    assert counts["total"] + 3 * 516_556 == 12_355_476
    assert counts["affiliated"] == 165_760


@pytest.mark.parametrize(("channels", "width"), [(8, 64), (100, 100), (300, 128)])
def test_a_bridge_is_not_narrow_where_blocks_are_nor_wider_than_its_code(channels, width):
    sample = torch.zeros(2, 3, 16, 16)
    model = to_al([nn.Conv2d(3, channels, 1)], num_classes=5, sample=sample, code_dim=128)
    widths = {m.out_channels for m in model[0].enc.b.modules() if isinstance(m, nn.Conv2d)}
    assert widths == {width}
    assert model[0].enc.b(torch.zeros(2, channels, 16, 16)).shape == (2, 128)


def test_a_mean_over_positions_passes_over_padding():
    x, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    assert pool((x, mask)).tolist() == [[2.0]]


def test_rows_of_two_shares_are_classes():
    assert not of_numbers(torch.eye(2), nn.functional.mse_loss)
    assert of_numbers(torch.eye(2) + 1, nn.functional.mse_loss)
