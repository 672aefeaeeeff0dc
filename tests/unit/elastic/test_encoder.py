"""BERT and ViT as units: sizes and first weights as published, outputs as others make them."""

import torch
from torchvision.models import VisionTransformer
from transformers import BertConfig, BertForSequenceClassification

from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier

TINY = BertSizes(3, 16, 4, 32, 50, 12, dropout=0.0)


def through(units, x):
    for unit in units:
        x = unit.eval()(x)
    return x


def filled(units, weights):
    """Give units another network's weights, in the order of theirs."""
    own = [each for unit in units for each in unit.parameters()]
    for one, other in zip(own, weights, strict=True):
        one.data.copy_(other)


def with_one_map(weights):
    """Yield a BERT's weights with query, key and value of a layer as one map."""
    yield from weights[:5]
    for at in range(5, 5 + 3 * 16, 16):
        yield from (torch.cat(weights[at + kind : at + 6 : 2]) for kind in (0, 1))
        yield from weights[at + 6 : at + 16]
    yield from weights[5 + 3 * 16 :]


def test_bert_scores_as_hugging_face_s_does():
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = BertConfig(vocab_size=50, intermediate_size=32, max_position_embeddings=12, **sizes)
    theirs, units = BertForSequenceClassification(config).eval(), list(bert_classifier(TINY, 2))
    filled(units, with_one_map([*theirs.parameters()]))
    tokens, mask = torch.randint(0, 50, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [6]])
    expected = theirs(tokens, mask.long(), token_type_ids=tokens % 2).logits
    torch.testing.assert_close(through(units, (tokens, tokens % 2, mask)), expected)


def test_vit_scores_as_torchvision_s_does():
    theirs = VisionTransformer(8, 4, 2, 2, 16, 32, num_classes=5).eval()
    torch.nn.init.normal_(theirs.heads.head.weight)  # it comes with zeros
    units, x = vit_classifier(ViTSizes(2, 16, 2, 32, 4, 8, classes=5)), torch.randn(3, 3, 8, 8)
    token, patches, shift, positions, *rest = theirs.parameters()
    for at in range(0, 2 * 12, 6):  # the norm of a half lies behind its maps
        rest[at : at + 6] = [*rest[at + 2 : at + 6], *rest[at : at + 2]]
    filled(units, (token, positions, patches, shift, *rest))
    torch.testing.assert_close(through(units, x), theirs(x))
