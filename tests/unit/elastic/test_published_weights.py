"""Published weights are read from local files; ours then compute what theirs do."""

import pytest
import torch

from alkit.models.bert import BertSizes, bert, bert_for_classes
from alkit.models.vit import PUBLISHED, ViTSizes, load_torchvision, vit
from studies.elastic.bert_weights import load_bert

SIZES = BertSizes(2, 16, 4, 32, 50, 12, dropout=0.0)


def their_bert(folder, kind="BertForPreTraining"):
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 12, "num_labels": 2}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, tie_word_embeddings=False)
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(folder)
    return theirs


def batch():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 50, (3, 12), generator=generator)
    mask = torch.arange(12) < torch.tensor([[12], [5], [9]])
    segments = (torch.arange(12) > 4).long().expand(3, -1)
    return tokens, segments, mask


def through(units, x):
    with torch.no_grad():
        for unit in units:
            x = unit.eval()(x)
    return x


def test_a_classifier_computes_what_theirs_does(tmp_path):
    theirs = their_bert(tmp_path, "BertForSequenceClassification")
    units = bert_for_classes(SIZES, 2)
    assert load_bert(units, tmp_path) == 5 + 2 * (10 + 6) + 2
    units[-1].load_state_dict(theirs.classifier.state_dict())
    tokens, segments, mask = batch()
    with torch.no_grad():
        seen = theirs(tokens, attention_mask=mask.long(), token_type_ids=segments).logits
    torch.testing.assert_close(through(units, (tokens, segments, mask)), seen)


def test_words_and_the_next_text_are_foretold_as_theirs(tmp_path):
    theirs, units = their_bert(tmp_path), bert(SIZES)
    load_bert(units, tmp_path)
    (tokens, segments, mask), chosen = batch(), torch.tensor([[2, 4]] * 3)
    with torch.no_grad():
        seen = theirs(tokens, attention_mask=mask.long(), token_type_ids=segments)
    scores, following = through(units, (tokens, segments, mask, chosen))
    rows = chosen[..., None].expand(-1, -1, 50)
    torch.testing.assert_close(scores, seen.prediction_logits.gather(1, rows))
    torch.testing.assert_close(following, seen.seq_relationship_logits)


def test_weights_that_do_not_fit(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        load_bert(bert(SIZES), tmp_path / "none")
    their_bert(tmp_path)
    with pytest.raises(ValueError, match="give the sizes of that BERT"):
        load_bert(bert(SIZES._replace(width=8, heads=2)), tmp_path)
    with pytest.raises(ValueError, match=r"no tensor encoder\.layer\.2"):
        load_bert(bert(SIZES._replace(layers=3)), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is damaged"):
        load_bert(bert(SIZES), tmp_path)


def test_torchvision_weights_load():
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    theirs = VisionTransformer(32, 8, 2, 4, 16, 32, num_classes=5).eval()
    torch.nn.init.normal_(theirs.heads.head.weight)
    assert PUBLISHED["B/16"].tokens == 197
    units = vit(ViTSizes(2, 16, 4, 32, 8, 32, classes=5, dropout=0.0))
    assert load_torchvision(units, theirs.state_dict()) == len(theirs.state_dict())
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(through(units, x), theirs(x))
    other = vit(ViTSizes(2, 16, 4, 32, 8, 32, classes=7))
    assert load_torchvision(other, theirs.state_dict()) == len(theirs.state_dict()) - 2
    with pytest.raises(ValueError, match="no tensor encoder.layers.encoder_layer_2"):
        load_torchvision(vit(ViTSizes(3, 16, 4, 32, 8, 32)), theirs.state_dict())
    with pytest.raises(ValueError, match="not"):
        load_torchvision(vit(ViTSizes(2, 8, 4, 32, 8, 32)), theirs.state_dict())
