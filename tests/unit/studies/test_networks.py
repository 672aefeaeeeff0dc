"""Shapes and parameter counts of the published networks, from the sheets."""

import pytest
import torch

from studies.al.networks import (
    BiLSTM,
    EncoderBlock,
    resnet18_al,
    resnet18_al_head,
    vgg_al,
    vgg_al_head,
)


def _count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.mark.parametrize(
    ("blocks", "head", "counts", "shapes"),
    [
        (
            vgg_al(),
            vgg_al_head(200),
            [299_136, 1_771_008, 2_360_320, 2_360_320, 5_622_700],
            [(256, 16, 16), (512, 8, 8), (512, 4, 4), (512, 2, 2)],
        ),
        (
            resnet18_al(),
            resnet18_al_head(200),
            [1_856, 147_968, 591_104, 2_361_856, 9_442_304, 102_600],
            [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)],
        ),
    ],
    ids=["vgg", "resnet18"],
)
def test_image_networks(blocks, head, counts, shapes):
    assert [_count(block) for block in [*blocks, head]] == counts
    assert sum(counts) == {5: 12_413_484, 6: 12_647_688}[len(counts)]
    x = torch.randn(2, 3, 32, 32)
    for block, shape in zip(blocks, shapes, strict=True):
        x = block(x)
        assert x.shape == (2, *shape)
    assert head(x).shape == (2, 200)


@pytest.mark.parametrize("below", [False, True])
def test_a_bilstm_ends_where_each_text_ends(below):
    """As each text alone, also from the states of a layer below."""
    layer, lengths = BiLSTM(6, 4), [5, 1, 3, 5, 2]
    x, mask = torch.randn(5, 5, 6), torch.arange(5) < torch.tensor(lengths)[:, None]
    states = (torch.randn(2, 5, 4), torch.randn(2, 5, 4))
    y, _, (h, c) = layer((x, mask, *([states] if below else [])))
    for at, length in enumerate(lengths):
        own = [each[:, at : at + 1].contiguous() for each in states]
        alone, ends = layer.lstm(x[at : at + 1, :length], tuple(own) if below else None)
        torch.testing.assert_close(y[at, :length], alone[0])
        torch.testing.assert_close((h[:, at], c[:, at]), tuple(each[:, 0] for each in ends))
        assert not y[at, length:].any()


def test_padding_changes_no_real_token_and_is_zero():
    torch.manual_seed(0)
    block, x = EncoderBlock(12, 3, 8, 0.0), torch.randn(4, 5, 12)
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 4])[:, None]
    other = torch.where(mask.unsqueeze(2), x, torch.randn(4, 5, 12))
    (found, _), (again, _) = block((x, mask)), block((other, mask))
    torch.testing.assert_close(found, again)
    assert not found[~mask].any()
