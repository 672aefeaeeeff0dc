"""BERT and ViT as units: sizes and first weights as published, outputs as others make them."""

import pytest
import torch
from torchvision.models import VisionTransformer
from transformers import BertConfig, BertForSequenceClassification

from alkit.models.encoder import BertSizes, ViTSizes, bert_for_classes, vit

TINY = BertSizes(3, 16, 4, 32, 50, 12, dropout=0.0)


def test_parameters_as_published():
    with torch.device("meta"):
        units = bert_for_classes(BertSizes(), 2)
    embedding, *halves, pooler, scores = (sum(p.numel() for p in u.parameters()) for u in units)
    assert (embedding, pooler, scores) == (23_837_184, 590_592, 1_538)
    assert halves == [2_363_904, 4_723_968] * 3


def test_initial_weights():
    for std in (0.02, 0.2):
        units = bert_for_classes(TINY._replace(std=std), 5)
        words, scores = units[0].words.weight, units[-1].weight
        assert words.std().item() == pytest.approx(std, rel=0.1)
        assert scores.shape == (5, 16)
        assert scores.std().item() == pytest.approx(std, rel=0.3)


def test_every_parameter_gets_a_gradient():
    words, units = torch.randint(0, 50, (2, 12)), bert_for_classes(TINY, 2)
    scores = through(units, (words, words % 2, torch.ones(2, 12, dtype=torch.bool)))
    scores.square().sum().backward()
    assert all(p.grad is not None for unit in units for p in unit.parameters())


def through(units, x):
    for unit in units:
        x = unit.eval()(x)
    return x


def filled(units, weights):
    """Give units another network's weights, in the order of theirs."""
    own = [each for unit in units for each in unit.parameters()]
    for one, other in zip(own, weights, strict=True):
        one.data.copy_(other)


def in_our_order(weights):
    """Yield a BERT's weights: in a layer its norms come first, and three maps are one."""
    *before, norm, shift = weights[:5]
    yield from (*before, norm, shift)
    at = 5
    for _ in range(3):
        query, query_bias, key, key_bias, value, value_bias = weights[at : at + 6]
        mix, mix_bias, *norms = weights[at + 6 : at + 10]
        yield from (*norms, torch.cat([query, key, value]))
        yield from (torch.cat([query_bias, key_bias, value_bias]), mix, mix_bias)
        yield from (*weights[at + 14 : at + 16], *weights[at + 10 : at + 14])
        at += 16
    yield from weights[at:]


def test_bert_scores_as_hugging_face_s_does():
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = BertConfig(vocab_size=50, intermediate_size=32, max_position_embeddings=12, **sizes)
    theirs, units = BertForSequenceClassification(config).eval(), bert_for_classes(TINY, 2)
    filled(units, in_our_order([*theirs.parameters()]))
    tokens, mask = torch.randint(0, 50, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [6]])
    expected = theirs(tokens, mask.long(), token_type_ids=tokens % 2).logits
    torch.testing.assert_close(through(units, (tokens, tokens % 2, mask)), expected)


def test_vit_scores_as_torchvision_s_does():
    theirs = VisionTransformer(8, 4, 2, 2, 16, 32, num_classes=5).eval()
    torch.nn.init.normal_(theirs.heads.head.weight)  # it comes with zeros
    units, x = vit(ViTSizes(2, 16, 2, 32, 4, 8, classes=5)), torch.randn(3, 3, 8, 8)
    token, *convolution, positions = list(theirs.parameters())[:4]
    filled(units, [token, positions, *convolution, *list(theirs.parameters())[4:]])
    torch.testing.assert_close(through(units, x), theirs(x))
