"""Shapes and parameter counts of the published networks, from the sheets."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from alkit.models.lstm import BiLSTM, final_states, last_step, lstm_al
from alkit.models.resnet import resnet18_al, resnet18_al_head
from alkit.models.transformer import EncoderBlock, LegacyEncoderBlock, transformer
from alkit.models.vgg import vgg_al, vgg_al_head


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


def test_vgg_without_batch_norm_has_biases():
    assert not any(isinstance(part, nn.BatchNorm2d) for part in vgg_al(batch_norm=False)[0])
    assert vgg_al(batch_norm=False)[0][0].bias is not None


@pytest.mark.parametrize(("classes", "total"), [(2, 13_297_730), (4, 13_298_756), (14, 13_303_886)])
def test_lstm_counts(classes, total):
    blocks = lstm_al(30_000)
    assert [_count(block) for block in blocks] == [9_000_000, 1_142_784, 1_576_960, 1_576_960]
    assert _count(*blocks, nn.Linear(512, classes)) == total


def test_transformer_counts():
    blocks = transformer(30_000, blocks=3, width=300, heads=6, ffn=256, dropout=0.3)
    assert [_count(block) for block in blocks] == [9_000_000, *[517_156] * 3]
    # the published code registers another 516,556 unused parameters a block
    assert _count(*blocks, nn.Linear(300, 4)) + 3 * 516_556 == 12_102_340


@pytest.mark.parametrize("below", [False, True])
def test_a_bilstm_equals_torchs_packed_one(below):
    """Also from the states of a layer below."""
    layer, lengths = BiLSTM(6, 4), torch.tensor([5, 1, 3, 5, 2])
    x = torch.randn(5, 5, 6, requires_grad=True)
    mask = torch.arange(5) < lengths[:, None]
    states = [(torch.randn(2, 5, 4), torch.randn(2, 5, 4))] if below else []
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, (h, c) = layer.lstm(packed, *states)
    expected, _ = pad_packed_sequence(expected, batch_first=True, total_length=5)
    y, _, own = layer((x, mask, *states))
    torch.testing.assert_close((y, *own), (expected, h, c))
    wanted, found = (
        torch.autograd.grad(a.square().sum() + b.sum() + d.cos().sum(), [x, *layer.parameters()])
        for a, b, d in ((expected, h, c), (y, *own))
    )
    torch.testing.assert_close(found, wanted)
    assert final_states((x, mask, own)).shape == (5, 4)
    assert last_step((y, mask, own)).shape == (5, 8)


def test_an_encoder_block_equals_the_published_one_that_works_on_padding_too():
    torch.manual_seed(0)
    block, published = EncoderBlock(12, 3, 8, 0.0), LegacyEncoderBlock(12, 3, 8, 0.0)
    published.load_state_dict(block.state_dict(), strict=False)
    published.norms = copy.deepcopy(block.norms)  # theirs is another one, see test_legacy.py
    x, lengths = torch.randn(4, 5, 12, requires_grad=True), torch.tensor([5, 1, 3, 4])
    mask = torch.arange(5) < lengths[:, None]
    (found, _), (expected, _) = block((x, mask)), published((x, mask))
    torch.testing.assert_close(found[mask], expected[mask])
    assert not found[~mask].any()
    own = dict(published.named_parameters())
    names = [name for name, _ in block.named_parameters()]
    wanted = torch.autograd.grad(expected[mask].cos().sum(), [x, *(own[name] for name in names)])
    got = torch.autograd.grad(found[mask].cos().sum(), [x, *block.parameters()])
    torch.testing.assert_close(got, wanted)
